"""Threads import TensorFlow and load the library at the same time; then a build replaces its file.

Prints the path of the library.
"""

import pathlib
import sys
import threading

import custom_ops
from custom_ops import loader

assert "tensorflow" not in sys.modules
answers = []
threads = [threading.Thread(target=lambda: answers.append(loader.compiled_ops())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(answers) == 4 and len(set(map(id, answers))) == 1
qkv = sys.modules["tensorflow"].random.normal([2, 5, 12])
assert custom_ops.attention(qkv, 2, implementation="compiled").shape == [2, 5, 4]

path = pathlib.Path(answers[0].vit_ops_path)
new = path.with_suffix(".new")
new.write_bytes(path.read_bytes())
new.replace(path)
assert custom_ops.describe()["isas"]["chosen"]
print(custom_ops.describe()["path"])
