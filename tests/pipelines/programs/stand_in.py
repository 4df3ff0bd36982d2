"""A worker that does what it is told; it stands in for a command.

usage: python -m tests.pipelines.programs.stand_in FOLDER PLAN

PLAN is JSON: for each attempt, for each worker, a list of steps. Each worker writes its process id
and its TF_CONFIG to FOLDER/<attempt>-<index>.json first.

    out TEXT, err TEXT: writes a line
    exit CODE, kill SIGNAL: ends
    sleep SECONDS
    meet COUNT: waits until so many workers have started
    follow INDEX: waits for the end of another worker
    deaf: SIGTERM has no effect
    save: waits for SIGTERM, and ends with exit code 75
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import time


def main(folder, plan):
    config = json.loads(os.environ["TF_CONFIG"])
    index, attempt = config["task"]["index"], 0
    while (path := pathlib.Path(folder, f"{attempt}-{index}.json")).exists():
        attempt += 1
    steps = json.loads(plan)[attempt][index]
    if "save" in steps:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    elif "deaf" in steps:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"pid": os.getpid(), "config": config}))
    written.rename(path)
    for step in steps:
        name, _, value = step.partition(" ")
        if name in ("out", "err"):
            print(value, file=sys.stdout if name == "out" else sys.stderr, flush=True)
        elif name == "exit":
            sys.exit(int(value))
        elif name == "kill":
            os.kill(os.getpid(), int(value))
        elif name == "meet":
            while len(list(pathlib.Path(folder).glob(f"{attempt}-*.json"))) < int(value):
                time.sleep(0.01)
        elif name == "follow":
            follow(path.with_stem(f"{attempt}-{value}"))
        elif name != "deaf":
            time.sleep(float(value or 60))


def follow(path):
    while not path.exists():
        time.sleep(0.01)
    stat = pathlib.Path("/proc", str(json.loads(path.read_text())["pid"]), "stat")
    # The second: it ended between open and read.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
