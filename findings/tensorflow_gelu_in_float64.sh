#!/bin/sh
# Guess: tf.nn.gelu(x, approximate=False) of float64 has the digits of float64.
#
# Seen with TensorFlow 2.20.0, SciPy 1.15.3 and NumPy 2.2.6 (x86-64, 2026-11-29): its root of 1/2
# goes through float32 before it is cast to float64. So a float64 oracle of it is wrong from the
# 8th digit on, and by 4e-6 of the value in the tail at -16, where 0.5 * x * tf.math.erfc(-x *
# math.sqrt(0.5)) is right to 1e-13.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tensorflow==2.20.0 scipy==1.15.3 numpy==2.2.6 2> "$folder/errors" \
  || { cat "$folder/errors" >&2; exit 1; }
cat > "$folder/gelu.py" <<'PYTHON'
import math

import numpy as np
import scipy
import tensorflow as tf

print(f"TensorFlow {tf.__version__}, SciPy {scipy.__version__}")
x = np.linspace(-16, 16, 1001)
expected = 0.5 * x * scipy.special.erfc(-x * math.sqrt(0.5))
forms = {
    "tf.nn.gelu": tf.nn.gelu(tf.constant(x), approximate=False),
    "by erfc": 0.5 * x * tf.math.erfc(-x * math.sqrt(0.5)),
}
kept = expected != 0
errors = {
    name: float(np.abs(array.numpy()[kept] / expected[kept] - 1).max())
    for name, array in forms.items()
}
print(errors)
print(errors["tf.nn.gelu"] > 1e-7, errors["by erfc"] < 1e-12)
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/gelu.py" > "$folder/out" \
  2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
cat "$folder/out"
[ "$(tail -n 1 "$folder/out")" = "True True" ] || {
  echo "this has changed" >&2
  exit 1
}
