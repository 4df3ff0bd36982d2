"""Which workers there are, and which of them this process is."""

import dataclasses
import itertools
import json
import os
import re

from pipelines.errors import UserError

_JOBS = ("chief", "worker")
_EXAMPLE = "--workers=host0:8888,host1:8888 --worker_index=0"
# Ports of workers under SLURM: above those of well-known services, below those that Linux gives to
# connections. The tasks of a job step on one node have ports one after the other.
_FIRST_PORT, _LAST_PORT, _PORTS_OF_A_STEP = 10_240, 32_767, 16
# A part of a list of nodes: a name with or without numbers in brackets, as in rack[1-2]n[01-16].
_NODES = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")


@dataclasses.dataclass(frozen=True)
class Place:
    """The addresses of all workers, and the index of this one.

    Attributes:
        addresses: "host:port" of all workers; those of worker 0 first.
        index: the number of this worker, from 0.
        job: the scheduler's name of the job step, of which all workers are; "" if unknown.

    Raises:
        UserError: if an address is wrong or named twice, or there is no worker with the index.
    """

    addresses: tuple[str, ...]
    index: int
    job: str = ""

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
    if "SLURM_STEP_NODELIST" in environment and "SLURM_PROCID" in environment:
        return _of_slurm(environment)
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


def _of_slurm(environment):
    """The place in a job step of SLURM.

    Workers are numbered node by node, in the order of the step's list of nodes. SLURM_PROCID is
    not used: it follows --distribution, and no variable says which node another task is on.
    """
    try:
        nodes = _nodes(environment["SLURM_STEP_NODELIST"])
        tasks = _tasks(environment["SLURM_STEP_TASKS_PER_NODE"])
        node, local = int(environment["SLURM_NODEID"]), int(environment["SLURM_LOCALID"])
        job, step = int(environment["SLURM_JOB_ID"]), int(environment["SLURM_STEP_ID"])
        port = _first_port(job, step)
        addresses = [
            f"{name}:{port + task}"
            for name, count in zip(nodes, tasks, strict=True)
            for task in range(count)
        ]
    except (KeyError, ValueError) as error:
        reason = f"{error} is not set" if isinstance(error, KeyError) else error
        raise UserError(
            f"SLURM's variables name no workers: {reason}. Pass the workers, as in {_EXAMPLE}."
        ) from None
    return Place(tuple(addresses), sum(tasks[:node]) + local, f"job {job}.{step} of SLURM")


def _nodes(text):
    """The names in a list of nodes, such as node[9-10,12],login: node9, node10, node12, login."""
    names = []
    for part in _NODES.findall(text):
        pieces = [
            _numbers(piece[1:-1]) if piece.startswith("[") else [piece]
            for piece in re.split(r"(\[[^\[\]]*\])", part)
        ]
        names += map("".join, itertools.product(*pieces))
    if not names or ",".join(_NODES.findall(text)) != text:
        raise ValueError(f"SLURM_STEP_NODELIST={text}")
    return names


def _numbers(text):
    """The numbers in brackets, such as 08-10,12: 08, 09, 10, 12."""
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        count = range(int(first), int(last or first) + 1)
        numbers += [str(number).zfill(len(first)) for number in count]
    return numbers


def _tasks(text):
    """The numbers of tasks in a text such as 2(x3),1: 2, 2, 2, 1."""
    tasks = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not found:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}")
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def _first_port(job, step):
    """The port of the first worker of a job step on each node.

    Jobs may share nodes. Those with numbers that differ by less than 67 have different ports in
    their first 20 steps.
    """
    ranges = (_LAST_PORT + 1 - _FIRST_PORT) // _PORTS_OF_A_STEP
    return _FIRST_PORT + _PORTS_OF_A_STEP * ((job + 67 * step) % ranges)
