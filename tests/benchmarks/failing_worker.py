"""A worker of `benchmarks.gpu` that answers for the names it gets, and dies or hangs at some."""

import json
import os
import sys
import time

for name in json.loads(sys.stdin.readline())["names"]:
    if name == "dies":
        print("Segmentation of something")
        sys.stdout.flush()
        os._exit(7)
    if name == "hangs":
        time.sleep(60)
    problems = ["wrong"] if name in ("wrong", "poison") else []
    print(json.dumps({"name": name, "problems": problems}), flush=True)
    if name == "poison":
        sys.exit(3)
