#!/bin/sh
# Guess: where all logits of a row but one are far below, float32 softmax gives that one exactly 1,
# since exp(0) / (exp(0) + 0 + ...) is 1 / 1.
#
# Seen with TensorFlow 2.20.0 on x86-64 (Intel Xeon, 2026-11-27): with oneDNN it does. With
# TensorFlow's own kernel, TF_ENABLE_ONEDNN_OPTS=0 and the default on processors without VNNI, bf16
# and AMX, it gives 0.99999994, in rows that fill vectors of 8, and exactly 1 in the rows after
# them: 192 of 197 rows. A one-hot weight of attention then has a gradient of a rounding in place of
# 0, and the same row differs with the number of rows beside it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.20.0
cat > "$folder/softmax.py" <<'PYTHON'
import numpy as np
import tensorflow as tf

counts = []
for rows in (5, 8, 197):
    largest = tf.nn.softmax(1000.0 * tf.eye(rows)).numpy().max(axis=1)
    counts.append(int(np.sum(largest != 1)))
    print(f"TensorFlow {tf.__version__}, {rows} rows: {counts[-1]} below 1, least {largest.min():.8f}")
print(counts)
PYTHON
for onednn in 0 1; do
  echo "TF_ENABLE_ONEDNN_OPTS=$onednn"
  TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=$onednn \
    "$folder/venv/bin/python" "$folder/softmax.py" > "$folder/$onednn" 2> "$folder/errors" \
    || { cat "$folder/errors" >&2; exit 1; }
  cat "$folder/$onednn"
done
[ "$(tail -n 1 "$folder/0")" = "[0, 8, 192]" ] && [ "$(tail -n 1 "$folder/1")" = "[0, 0, 0]" ] || {
  echo "this has changed" >&2
  exit 1
}
