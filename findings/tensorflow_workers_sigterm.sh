#!/bin/sh
# Guess: SIGTERM ends a Python process that has no handler for it, also after it made a
# tf.distribute.MultiWorkerMirroredStrategy.
#
# Seen with TensorFlow 2.20.0 (x86-64, Linux, 2026-11-28): from the strategy on, SIGTERM is dropped
# and the process goes on, so a scheduler kills it at its limit. signal.getsignal still answers
# SIG_DFL: the handler is that of TensorFlow's coordination service, below Python. If Python's
# handler is set again after the strategy was made, the process ends.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tensorflow==2.20.0 keras==3.15.1 2> "$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
cat > "$folder/worker.py" <<'PYTHON'
import json
import os
import signal
import socket
import sys
import time

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"
task = {"type": "worker", "index": 0}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": task})

import tensorflow as tf

before = signal.getsignal(signal.SIGTERM)
tf.distribute.MultiWorkerMirroredStrategy()
if "again" in sys.argv:
    signal.signal(signal.SIGTERM, before)
says = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print(f"TensorFlow {tf.__version__}: Python says that SIGTERM is the default: {says}", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(3)
print("alive 3 s after SIGTERM", flush=True)
PYTHON
run() {
  code=0
  TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" "$folder/worker.py" "$@" \
    > "$folder/output" 2> "$folder/errors" || code=$?
  cat "$folder/output"
  echo "exit code $code"
}
run > "$folder/as_is"
run again > "$folder/set_again"
cat "$folder/as_is" "$folder/set_again"
grep -q "default: True" "$folder/as_is"
grep -q "alive 3 s after SIGTERM" "$folder/as_is"
grep -q "exit code 0" "$folder/as_is"
grep -q "exit code 143" "$folder/set_again"
