"""Does a long run leak? Memory, open files and threads of a training that evaluates and saves.

`pipelines.pretrain` trains a small model in a separate process, with an average of the weights, and
with a log line, an evaluation and a checkpoint every few steps. This process samples it about every
10 s. At the end it sends SIGTERM; the training must save, exit with 75, and leave a complete
checkpoint.

The warm-up is a tenth of the time, at least 30 s. The samples after it are split into two halves.
The run is flat if, in the second half, the memory grows by less than `MOST_GROWTH` of its size, the
minimum of open files is not higher than in the first half, and the minimum of threads is at most
`MORE_THREADS` higher. Minima are compared because files that are open for a moment do not raise
them, while leaked files do. Growth is the median slope of all pairs of samples, because writing a
checkpoint changes the memory for a moment. The program exits with 1 if the run is not flat. Longer
runs find smaller leaks.

usage: python -m benchmarks.bench_soak [minutes, 20] [file for the JSON]
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from pipelines.runs import checkpoints

MOST_GROWTH = 0.01  # The allocator alone causes half of this.
MORE_THREADS = 2  # TensorFlow's pools start threads on demand.
INTERVAL = 10  # Seconds between samples; less in short runs, so that each half has 20.
BATCH = 32
SETTINGS = (
    f"train.steps={10**9}",
    f"train.batch_size={BATCH}",
    "train.log_every=5",
    "train.eval_every=10",
    "train.checkpoint_every=10",
    "train.keep_best=true",
    "train.ema_decay=0.999",
    "train.accumulate_steps=2",
    "schedule.decay=constant",
    "model.layers=2",
)
UNITS = {
    "memory": "MB",
    "files": "",
    "threads": "",
    "checkpoints": "",
    "disk": "MB",
    "images_per_second": "",
}


def start(workdir):
    """Starts the training; its output goes to `<workdir>.log`."""
    command = [sys.executable, "-m", "pipelines.pretrain", f"--workdir={workdir}"]
    command += ["--strategy=one_device", *(f"--set={setting}" for setting in SETTINGS)]
    with open(workdir + ".log", "w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def last_step(workdir):
    """The last step in the metrics, or 0 if there is none; reads only the end of the file."""
    try:
        with open(os.path.join(workdir, "metrics.jsonl"), "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - 4096))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    return max([0] + [json.loads(line)["step"] for line in lines[1:] if line.endswith(b"\n")])


def folder_size(path):
    """Bytes of all files below `path`; files may be deleted during the count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(folder, name))
            except FileNotFoundError:
                continue
    return total


def sample(process, workdir):
    """The memory, open files and threads that the process has now."""
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        status = dict(line.split(":", 1) for line in file)
    return {
        "time": time.monotonic(),
        "step": last_step(workdir),
        "memory": int(status["VmRSS"].split()[0]) / 1024,
        "files": len(os.listdir(f"/proc/{process.pid}/fd")),
        "threads": int(status["Threads"]),
        "checkpoints": len(checkpoints.steps(os.path.join(workdir, "checkpoints"))),
        "disk": folder_size(workdir) / 1e6,
    }


def watch(process, workdir, seconds, interval):
    """Samples the process after the first logged step, and prints progress lines."""
    while not last_step(workdir):
        assert process.poll() is None, "the training ended before its first step"
        time.sleep(0.1)
    samples = [sample(process, workdir)]
    begin = samples[0]["time"]
    for number in range(1, round(seconds / interval) + 1):
        time.sleep(max(0, begin + number * interval - time.monotonic()))
        assert process.poll() is None, f"the training ended with {process.returncode}"
        before, now = samples[-1], sample(process, workdir)
        elapsed = now["time"] - before["time"]
        now["images_per_second"] = (now["step"] - before["step"]) * BATCH / elapsed
        samples.append(now)
        left = datetime.timedelta(seconds=round(max(0, seconds - (now["time"] - begin))))
        print(
            f"step {now['step']:,}  {now['memory']:,.1f} MB  {now['files']} files  "
            f"{now['threads']} threads  {now['checkpoints']} checkpoints  "
            f"{now['images_per_second']:,.0f} img/s  ETA {left}",
            flush=True,
        )
    return samples[1:]


def stop(process, workdir):
    """Stops the training with SIGTERM, and checks the checkpoint that it leaves."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 75, f"the training ended with {process.returncode}"
    found = checkpoints.steps(os.path.join(workdir, "checkpoints"))
    damage = checkpoints.find_damage(os.path.join(workdir, "checkpoints"), found[-1])
    assert damage is None, damage
    assert found[-1] >= last_step(workdir)


def slope(samples, name):
    """Median slope of all pairs of samples, per hour."""
    hours = np.array([x["time"] for x in samples]) / 3600
    values = np.array([x[name] for x in samples], float)
    first, second = np.triu_indices(len(samples), k=1)
    return float(np.median((values[second] - values[first]) / (hours[second] - hours[first])))


def judge(samples):
    """`(table, verdicts)` of the samples after the warm-up."""
    middle = (samples[0]["time"] + samples[-1]["time"]) / 2
    first = [x for x in samples if x["time"] <= middle]
    second = [x for x in samples if x["time"] > middle]
    table = {}
    for name in UNITS:
        values = [x[name] for x in samples]
        table[name] = {
            "first": values[0],
            "last": values[-1],
            "minimum": min(values),
            "maximum": max(values),
            "slope": slope(samples, name),
            "slope of the second half": slope(second, name),
        }
    hours = (second[-1]["time"] - second[0]["time"]) / 3600
    growth = table["memory"]["slope of the second half"] * hours
    verdicts = {"memory": growth < MOST_GROWTH * table["memory"]["maximum"]}
    for name, allowed in (("files", 0), ("threads", MORE_THREADS)):
        floors = [min(x[name] for x in half) for half in (first, second)]
        verdicts[name] = floors[1] <= floors[0] + allowed
    return table, verdicts


def main(minutes=20, path=None):
    seconds = 60 * float(minutes)
    warm_up = max(30, seconds / 10)
    interval = min(INTERVAL, (seconds - warm_up) / 40)
    assert interval > 0.1, "run at least a minute: the first 30 s are warm-up"
    with tempfile.TemporaryDirectory() as folder:
        workdir = os.path.join(folder, "run")
        process = start(workdir)
        try:
            samples = watch(process, workdir, seconds, interval)
            stop(process, workdir)
        except BaseException:
            process.kill()
            with open(workdir + ".log", encoding="utf-8") as log:
                print(*log.readlines()[-20:], sep="", file=sys.stderr)
            raise
        finally:
            process.wait()

    kept = [x for x in samples if x["time"] >= samples[0]["time"] + warm_up]
    table, verdicts = judge(kept)
    steps = samples[-1]["step"]
    print(f"\n{seconds / 60:g} minutes, {steps:,} steps, evaluated and saved every 10 steps")
    columns = list(next(iter(table.values())))
    titles = [*columns[:4], "per hour", "2nd half, /h"]
    print(f"{'after warm-up':24}" + "".join(f"{title:>13}" for title in titles))
    for name, row in table.items():
        unit = f" ({UNITS[name]})" if UNITS[name] else ""
        print(f"{name + unit:24}" + "".join(f"{row[column]:13,.1f}" for column in columns))
    flat = all(verdicts.values())
    failed = [name for name, fine in verdicts.items() if not fine]
    print("flat" if flat else f"NOT flat: {', '.join(failed)}")
    result = {"minutes": seconds / 60, "steps": steps, "flat": flat, "verdicts": verdicts}
    result |= {"table": table, "samples": samples}
    text = json.dumps(result)
    if path is None:
        print(text)
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
