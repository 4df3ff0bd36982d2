"""Measures `pipelines.serve` under 1, 8 and 32 clients, under too many, and after them.

The server is a process with a model of random weights. Each client is a thread of this process with
a connection of its own: it sends a photo of scikit-learn, 640 x 427 pixels, as a JPEG in base64 to
the REST interface, and sends it again as soon as it is answered. Every answer is compared with the
first one, and that one with the model. Then more clients come than may wait. Prints requests per
second, the median and the 99th percentile of the latency, errors, what was refused and how fast,
and the resident memory of the server before and after each turn.

usage: python -m benchmarks.bench_serve [--model ViT-S/16] [--seconds 30] [--fused]
"""

import argparse
import base64
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

import vit_tf
from vit_tf.images.decoding import decode_image

CLIENTS = (1, 8, 32)
WAITING = 40
TOO_MANY = 120
PATH = "/v1/models/vit:predict"
_REFUSED = 503


class Server:
    """The process, on a port of its own."""

    def __init__(self, folder, flags):
        self._log = os.path.join(folder, "log")
        command = [sys.executable, "-m", "pipelines.serve", "--port=0", f"--waiting={WAITING}"]
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [*command, *flags], stdout=log, stderr=subprocess.STDOUT
            )
        while "Ctrl-C" not in self.log():
            if self._process.poll() is not None:
                sys.exit(self.log())
            time.sleep(0.1)
        line = next(x for x in self.log().splitlines() if x.startswith("page: "))
        self.port = int(line.rstrip("/").rpartition(":")[2])

    def log(self):
        with open(self._log) as log:
            return log.read()

    def megabytes(self):
        """Resident memory."""
        with open(f"/proc/{self._process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self):
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait()
        print(f"{self.log().splitlines()[-1]}; exit code {code}")


def request(connection, body):
    """Status and body of an answer."""
    connection.request("POST", PATH, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def load(server, clients, seconds, body, expected):
    """Lets clients send for a time; returns the latencies by status, and the number of errors."""
    found, errors, end = {}, [], time.perf_counter() + seconds

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        with contextlib.closing(connection):
            while (begin := time.perf_counter()) < end:
                try:
                    status, answer = request(connection, body)
                except (OSError, http.client.HTTPException) as error:
                    errors.append(repr(error))
                    connection.close()
                    continue
                found.setdefault(status, []).append(time.perf_counter() - begin)
                if status not in (200, _REFUSED) or (status == 200 and answer != expected):
                    errors.append(f"{status} {answer[:200]}")
                if status == _REFUSED:
                    time.sleep(0.1)  # As a client that tries again later.

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, errors


def turn(server, clients, seconds, body, expected):
    before = server.megabytes()
    found, errors = load(server, clients, seconds, body, expected)
    answered = sorted(found.get(200, [float("nan")]))
    line = (
        f"{clients:4} clients {len(answered) / seconds:8.1f} requests/s   p50 "
        f"{1e3 * statistics.median(answered):7.1f} ms   p99 "
        f"{1e3 * answered[int(0.99 * len(answered))]:7.1f} ms   {len(errors)} errors   "
        f"memory {before:.0f} -> {server.megabytes():.0f} MB"
    )
    if refused := sorted(found.get(_REFUSED, [])):
        line += (
            f"   {len(refused)} refused, median {1e3 * statistics.median(refused):.1f} ms, p99 "
            f"{1e3 * refused[int(0.99 * len(refused))]:.1f} ms"
        )
    print(line, *errors[:3], sep="\n", flush=True)
    return not errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--fused", action="store_true")
    arguments = parser.parse_args()
    photo = tf.io.encode_jpeg(load_sample_images().images[0], quality=90).numpy()
    request_ = {
        "signature_name": "serving_bytes",
        "instances": [{"b64": base64.b64encode(photo).decode()}],
    }
    body = json.dumps(request_).encode()
    with tempfile.TemporaryDirectory() as folder:
        model = vit_tf.create_model(arguments.model)
        kernel = model.head.kernel  # New heads are zero.
        kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
        rule = vit_tf.Preprocessing(image_size=model.config.image_size)
        path = os.path.join(folder, "model.npz")
        vit_tf.save_npz(model, path, rule)
        logits = model(rule(decode_image(photo))[None]).numpy()[0]
        server = Server(folder, [f"--model={path}"] + ["--fused"] * arguments.fused)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            status, expected = request(connection, body)
            found = np.array(json.loads(expected)["predictions"][0]["logits"])
            assert status == 200 and np.abs(found - logits).max() < 1e-4 * np.abs(logits).max()
            connection.close()
            print(f"{arguments.model}, {'fused, ' * arguments.fused}{os.cpu_count()} cores")
            good = [turn(server, x, arguments.seconds, body, expected) for x in CLIENTS]
            good.append(turn(server, TOO_MANY, arguments.seconds / 3, body, expected))
            good.append(turn(server, 1, arguments.seconds / 3, body, expected))
        finally:
            server.end()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
