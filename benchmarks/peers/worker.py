"""One system in a process of its own, which answers requests: one JSON object a line.

usage: python -m benchmarks.peers.worker '{"kind": a class of `runners` or, as
"trainers.Ours", of another module, "folder": of the
model's files, "threads": ..., "cpus": the CPUs it may use, "options": of the class}'

It first answers with its versions. `{"images": .npy file, "batch": ..., "logits": .npy file}`
prepares the first images of a file, and writes their logits. `{"seconds": ...}` calls it for about
this time and answers with the seconds of each call, at least one; a short first call does not
count. `{"images": ..., "clients": ..., "seconds": ..., "logits": ...}` calls it from several
threads, each with an image of its own, see `load`, and writes the logits of the last calls. The
answer to a request that fails is `{"error": ...}`.
"""

import ctypes
import importlib
import json
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

# Seconds between samples of the memory under load.
INTERVAL = 0.25
_PR_SET_PDEATHSIG = 1


def main():
    # Lines that libraries print go to the log and not among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A stopped process does not notice that the driver has ended.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings = json.loads(sys.argv[1])
    os.sched_setaffinity(0, settings["cpus"])
    state = {}

    def start():
        module, _, kind = settings["kind"].rpartition(".")
        kind = getattr(importlib.import_module(f"benchmarks.peers.{module or 'runners'}"), kind)
        folder = pathlib.Path(settings["folder"])
        state["runner"] = kind(folder, settings["threads"], settings["options"])
        return {"versions": state["runner"].versions}

    _answer(answers, start)
    for line in sys.stdin:
        request = json.loads(line)
        _answer(answers, lambda request=request: _perform(request, state))


def _answer(answers, perform):
    try:
        found = perform()
    except (Exception, SystemExit) as error:  # The driver reports it and goes on.
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found), file=answers, flush=True)


def _perform(request, state):
    if "clients" in request:
        state.pop("call", None)
        images = np.load(request["images"])
        chosen = [i % len(images) for i in range(request["clients"])]
        calls = [state["runner"].prepare(images[i : i + 1]) for i in chosen]
        answer, results = load(calls, request["seconds"])
        np.save(request["logits"], np.concatenate(results))
        return answer
    if "images" in request:
        state.pop("call", None)
        images = np.load(request["images"])[: request["batch"]]
        state["call"] = state["runner"].prepare(images)
        np.save(request["logits"], state["call"]())
        return {}
    return {"seconds": timed(state["call"], request["seconds"])}


def timed(call, seconds, clock=time.perf_counter):
    """Seconds of each call. The first does not count, unless it takes all the time alone."""
    begin = clock()
    call()
    found = [clock() - begin]
    if found[0] >= seconds:
        return found
    found, begin = [], clock()
    while not found or clock() - begin < seconds:
        before = clock()
        call()
        found.append(clock() - before)
    return found


def load(calls, seconds):
    """Runs every function again and again in a thread of its own.

    Returns:
        `(answer, results)`: a dict of `latencies`: seconds of each call; `elapsed`: seconds until
        the last one ended; and `memory`: resident bytes, sampled from after the first calls to the
        end; and the last result of each function.
    """
    results = [call() for call in calls]
    latencies, errors, begin = [], [], time.perf_counter()

    def client(index, call):
        try:
            while time.perf_counter() < begin + seconds:
                before = time.perf_counter()
                results[index] = call()
                latencies.append(time.perf_counter() - before)
        except Exception as error:  # Raised again below, in the thread that answers.
            errors.append(error)

    threads = [threading.Thread(target=client, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        memory.append(_resident_bytes())
        time.sleep(INTERVAL)
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    memory.append(_resident_bytes())  # The threads may have ended before the loop above began.
    if errors:
        raise errors[0]
    return {"latencies": latencies, "elapsed": elapsed, "memory": memory}, results


def _resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
