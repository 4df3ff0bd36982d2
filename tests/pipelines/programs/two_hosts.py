"""Trains on two hosts that this process drives, as one process drives the hosts of a TPU slice.

usage: python -m tests.pipelines.programs.two_hosts FOLDER FOLDER WRONG [path.to.field=value ...]

Each folder is the working directory of a server of TensorFlow, the host. Prints the number of hosts
and the message about the data set WRONG, as JSON, and trains in the folder `run`.
"""

import contextlib
import json
import subprocess
import sys

import tensorflow as tf

from pipelines.data.sources.open import open_source
from pipelines.distribution import strategies
from pipelines.distribution.local_workers import free_addresses
from pipelines.errors import DataError

# Before the modules below import it: the devices are cores of CPUs.
strategies.is_tpu = lambda strategy: True

from pipelines.data.host_reading import check_hosts  # noqa: E402
from pipelines.training.train import train  # noqa: E402
from tests.pipelines.tiny import tiny_experiment  # noqa: E402

# Ends with this process, whose end closes the pipe.
_SERVER = """
import sys, tensorflow as tf
server = tf.distribute.Server(
    {"worker": sys.argv[2:]}, job_name="worker", task_index=int(sys.argv[1]), protocol="grpc"
)
sys.stdin.read()
"""


@contextlib.contextmanager
def servers(folders):
    """Starts a server in each folder; yields their addresses."""
    addresses = free_addresses(len(folders))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(index), *addresses],
            cwd=folder,
            stdin=subprocess.PIPE,
        )
        for index, folder in enumerate(folders)
    ]
    try:
        yield addresses
    finally:
        for process in processes:
            process.kill()
            process.wait()


def slice_strategy(hosts):
    """A strategy with a replica on each host, and an input pipeline there, like `TPUStrategy`.

    `MirroredStrategy` has this in private only.
    """
    devices = tuple(f"/job:worker/replica:0/task:{host}/device:CPU:0" for host in range(hosts))
    strategy = tf.distribute.MirroredStrategy(["CPU:0"], tf.distribute.ReductionToOneDevice())
    strategy.extended._initialize_single_worker(devices)
    strategy.extended._input_workers_devices = tuple((device, (device,)) for device in devices)
    return strategy


def main(first, second, wrong, *assignments):
    with servers([first, second]) as addresses:
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": addresses}))
        strategy = slice_strategy(2)
        found = {"hosts": strategies.num_hosts(strategy), "message": ""}
        try:
            check_hosts(strategy, open_source(wrong, "train"))
        except DataError as error:
            found["message"] = str(error)
        train(tiny_experiment(*assignments), "run", strategy)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
