"""Which workers there are, and which of them this process is."""

import dataclasses
import json
import os

from pipelines.errors import UserError

_JOBS = ("chief", "worker")
_EXAMPLE = "--workers=host0:8888,host1:8888 --worker_index=0"


@dataclasses.dataclass(frozen=True)
class Place:
    """The addresses of all workers, and the index of this one.

    Attributes:
        addresses: "host:port" of all workers; those of worker 0 first.
        index: the number of this worker, from 0.

    Raises:
        UserError: if an address is wrong or named twice, or there is no worker with the index.
    """

    addresses: tuple[str, ...]
    index: int

    def __post_init__(self):
        for index in range(self.count):
            self.split(index)
        if len(set(self.addresses)) < self.count:
            raise UserError(
                f"Two workers have the same address: {','.join(self.addresses)}. Each needs its "
                "own host or port."
            )
        if not 0 <= self.index < self.count:
            raise UserError(
                f"There is no worker {self.index}: {self.count} workers have the indices 0 to "
                f"{self.count - 1}."
            )

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    def split(self, index) -> tuple[str, int]:
        """Host and port of a worker."""
        host, _, port = self.addresses[index].rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError(
                f"The address of worker {index} must be HOST:PORT. Received: "
                f"{self.addresses[index]!r}. An example: {_EXAMPLE}."
            )
        return host.strip("[]"), int(port)


def find(workers=None, worker_index=None, environment=os.environ) -> Place:
    """The place of this process: from flags, else from TF_CONFIG, else from SLURM's variables.

    Args:
        workers: "host:port,host:port", or None.
        worker_index: the number of this worker, or None.
        environment: mapping of environment variables.

    Raises:
        UserError: if nothing names the workers, or not as expected.
    """
    if workers is not None or worker_index is not None:
        if workers is None or worker_index is None:
            raise UserError(f"--workers and --worker_index belong together, as in {_EXAMPLE}.")
        return Place(tuple(text.strip() for text in workers.split(",")), worker_index)
    if text := environment.get("TF_CONFIG"):
        return _of_tf_config(text)
    if "SLURM_PROCID" in environment and "SLURM_STEP_NODELIST" in environment:
        return _of_slurm()
    raise UserError(
        f"--strategy=multi_worker needs the addresses of all workers: {_EXAMPLE}, the variable "
        "TF_CONFIG, or a job step of SLURM (srun). On one machine, python -m pipelines.launch "
        "starts workers."
    )


def _of_tf_config(text):
    """The place in TF_CONFIG, as TensorFlow documents it; a chief is worker 0."""
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        addresses = {job: tuple(map(str, cluster.get(job, ()))) for job in _JOBS}
        job, index = task["type"], int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            'TF_CONFIG is not as TensorFlow expects it: {"cluster": {"worker": ["host0:8888", '
            '"host1:8888"]}, "task": {"type": "worker", "index": 0}}. Received: ' + repr(text[:200])
        ) from None
    if job not in _JOBS or not set(cluster) <= {*_JOBS, "evaluator"}:
        raise UserError(
            f"TF_CONFIG has the task {job!r} in a cluster of {', '.join(cluster)}. All processes "
            "must be workers, one of which may be called chief."
        )
    before = len(addresses["chief"]) if job == "worker" else 0
    if not 0 <= index < len(addresses[job]):
        raise UserError(f"TF_CONFIG has no address for the task {job!r} {index}.")
    return Place(addresses["chief"] + addresses["worker"], before + index)


def _of_slurm():
    """The place in a job step of SLURM, by TensorFlow's resolver."""
    import tensorflow as tf  # Here, since flags and TF_CONFIG do without.

    try:
        # SLURM hands out the GPUs (--gpus-per-task), not the resolver, which needs some number.
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=2**20, gpus_per_task=1, auto_set_gpu=False
        )
        addresses = resolver.cluster_spec().as_dict()["worker"]
        hosts, rank = resolver._resolve_hostlist(), resolver._resolve_own_rank()
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"SLURM's variables name no workers: {error}") from None
    # The resolver sorts hosts by name; SLURM numbers its tasks in the order of its list of nodes,
    # in which node9 is before node10.
    addresses.sort(key=lambda address: hosts.index(address.rpartition(":")[0]))
    return Place(tuple(addresses), rank)
