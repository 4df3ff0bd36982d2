#!/bin/sh
# Guess: tf2onnx converts TensorFlow's exact GELU, since ONNX has Erf since opset 9,
# or raises an error.
#
# Seen with TensorFlow 2.20.0, tf2onnx 1.17.0 and onnx 1.19.1 (x86-64, 2026-11-28): it does neither.
# tf.nn.gelu(x, approximate=False) is written with Erfc, which tf2onnx does not know. It logs one
# line, copies the op into the file, and returns as if nothing had happened: onnx.checker says "No
# Op registered for Erfc". So models with the exact GELU, those of PyTorch, become files that no
# runtime loads. The form of tanh is converted. 0.5 * x * (1 + erf(x / sqrt(2))) is converted too.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tensorflow==2.20.0 tf2onnx==1.17.0 onnx==1.19.1 2> "$folder/errors" \
  || { cat "$folder/errors" >&2; exit 1; }
cat > "$folder/gelu.py" <<'PYTHON'
import onnx
import tensorflow as tf
import tf2onnx

FORMS = {
    "exact": lambda x: tf.nn.gelu(x, approximate=False),
    "by erf": lambda x: 0.5 * x * (1 + tf.math.erf(x / 2**0.5)),
    "tanh": lambda x: tf.nn.gelu(x, approximate=True),
}
print(f"TensorFlow {tf.__version__}, tf2onnx {tf2onnx.__version__}, onnx {onnx.__version__}")
valid = []
for name, form in FORMS.items():
    signature = [tf.TensorSpec([2, 3], name="x")]
    model, _ = tf2onnx.convert.from_function(tf.function(form, signature), signature, opset=18)
    try:
        onnx.checker.check_model(model)
        valid.append(True)
    except onnx.checker.ValidationError:
        valid.append(False)
    print(name, [node.op_type for node in model.graph.node], "valid" if valid[-1] else "not valid")
print(valid)
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/gelu.py" > "$folder/out" \
  2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
cat "$folder/out"
[ "$(tail -n 1 "$folder/out")" = "[False, True, True]" ] || {
  echo "this has changed" >&2
  exit 1
}
