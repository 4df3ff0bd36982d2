"""Runs a job on a Ray cluster: blocks of indices in actors, results in the order of the blocks.

Ray Data hands out the blocks, starts an actor again that was lost, repeats the blocks that it had,
and waits with further ones while results are not taken: memory does not grow with the data.
"""

import atexit
import contextlib
import importlib.util
import logging
import os
import queue
import socket
import threading
import time
import warnings

from pipelines import errors
from pipelines.distribution.engine.actor import Actor, Failed
from pipelines.errors import RunError, UserError, WorkerError

_log = logging.getLogger(__name__)

# Seconds: to connect to the head, for an answer from then on, and without one until it is lost.
_CONNECT, _ANSWER, _LOST = 10.0, 2.0, 20.0
# Seconds between two calls of `check`, and between two looks at the head.
_POLL = 0.5
# How often a block is tried again whose actor was lost: a block may be what ends it.
_RETRIES = 20
_END = object()
# Variables of the environment that change results; actors get those of the command.
_VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "VIT_OPS", "VIT_ISA", "TF_CPP_MIN_LOG_LEVEL")


class RayEngine:
    """A Ray cluster, which is joined or started. A context manager.

    Args:
        address: HOST:PORT of the head of a cluster; None starts one on this machine, and ends it.
        cores: of each actor, and threads of TensorFlow in it.

    Attributes:
        cores: as above.

    Raises:
        UserError: if Ray is not installed or there is no cluster at the address.
        RunError: if a cluster cannot be started.
    """

    def __init__(self, address=None, cores=1):
        if importlib.util.find_spec("ray") is None:
            raise UserError(
                "--engine=ray needs the package ray, which is not installed: pip install "
                "'vit-tf[ray]'. Or leave out --engine."
            )
        self._address, self.cores = address, cores
        self._head = self._cluster = None
        self._is_lost, self._silent_since = False, None
        self._looked = 0.0

    def __enter__(self):
        if self._address is not None:
            self._head = _reachable(self._address)
        # Warnings of its C++ code about what is usual here.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS", str(self.cores))
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        variables |= {"TF_NUM_INTRAOP_THREADS": threads}
        settings: dict = {} if self._address else {"num_cpus": len(os.sched_getaffinity(0))}
        try:
            with _own_handlers():
                ray.init(
                    address=self._address or "local",
                    include_dashboard=None if self._address else False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    runtime_env={"env_vars": variables},
                    **settings,
                )
        except Exception as error:  # Ray has no common class of its errors here.
            if self._address is None:
                raise RunError(
                    f"Cannot start a Ray cluster on this machine: {_reason(error)} Its logs are in "
                    "/tmp/ray/session_latest/logs."
                ) from None
            raise UserError(
                f"Cannot join the Ray cluster at {self._address}: {_reason(error)} The "
                "command has to run on one of its machines, with the same versions of Ray and "
                "Python."
            ) from None
        if self._head is not None:
            self._cluster = _cluster_at(self._head)
        return self

    def __exit__(self, *exc_info):
        import ray

        if self._is_lost or self._silent_since is not None:
            # It would wait for the head, and the process would be ended by a new one.
            atexit.unregister(ray.shutdown)
        else:
            ray.shutdown()

    def map(self, job, blocks, check=lambda: None):
        """Computes blocks.

        Args:
            job: the `jobs.Job`.
            blocks: see `jobs.blocks`.
            check: called at least every few seconds; it may raise an error to stop.

        Yields:
            The result of each block, in the order of `blocks`.

        Raises:
            UserError, RunError: of the job, in an actor.
            WorkerError: if the head of the cluster was lost, also if it is back.
        """
        if not blocks:
            return
        results, ended = queue.Queue(maxsize=1), threading.Event()
        about = job, blocks, results, ended
        threading.Thread(target=self._read, args=about, daemon=True).start()
        try:
            while True:
                check()
                self._check_head()
                try:
                    outcome = results.get(timeout=_POLL)
                except queue.Empty:
                    continue
                if outcome is _END:
                    return
                if isinstance(outcome, Exception):
                    raise self._explained(outcome) from None
                if isinstance(outcome, Failed):
                    raise getattr(errors, outcome.kind)(outcome.message)
                yield outcome.result
        finally:
            ended.set()

    def _read(self, job, blocks, results, ended):
        """Puts the outcome of each block into a queue, then `_END`, or an error."""

        def put(outcome):
            while not ended.is_set():
                with contextlib.suppress(queue.Full):
                    return results.put(outcome, timeout=_POLL)
            return None

        try:
            rows = self._dataset(job, blocks).iter_rows()
            with contextlib.closing(iter(rows)) as outcomes:
                for row in outcomes:
                    put(row["outcome"])
                    if ended.is_set():
                        return
            put(_END)
        except Exception as error:
            put(error)

    def _dataset(self, job, blocks):
        import ray

        from pipelines.distribution import sameness

        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        actors = max(1, int(ray.cluster_resources().get("CPU", 1)) // self.cores)
        _log.info(f"Ray: {actors} actors with {errors.counted(self.cores, 'core')} each")
        rows = [{"start": block.start, "stop": block.stop} for block in blocks]
        pool = ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=actors,
            initial_size=actors,
            # A block that waits at a busy actor could be computed by one that has nothing to do.
            max_tasks_in_flight_per_actor=1,
        )
        with warnings.catch_warnings():
            # Nothing else limits the retries; the pinned version has it.
            warnings.filterwarnings("ignore", "`ray_remote_args_fn` is deprecated")
            return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                Actor,
                fn_constructor_args=(job, sameness.program(""), socket.gethostname()),
                batch_size=None,
                compute=pool,
                num_cpus=self.cores,
                ray_remote_args_fn=lambda: {"max_restarts": -1, "max_task_retries": _RETRIES},
            )

    def _check_head(self):
        """Raises `WorkerError` if the head has ended, or has not answered for a while.

        Ray itself would wait for ever or end the process, in a second if the head is back: so this
        looks often enough to find that nothing listens before a new head does.
        """
        now = time.monotonic()
        if self._head is None or now - self._looked < _POLL:
            return
        self._looked = now
        try:
            socket.create_connection(self._head, _ANSWER).close()
            self._is_lost = _cluster_at(self._head) != self._cluster
            self._silent_since = None
        except ConnectionRefusedError:
            self._is_lost = True
        except OSError:
            self._silent_since = self._silent_since or now
            self._is_lost = now - self._silent_since > _LOST
        if self._is_lost:
            raise self._lost()

    def _lost(self):
        return WorkerError(
            f"The head of the Ray cluster at {self._address} was lost. Start the cluster again, "
            "then the same command goes on."
        )

    def _explained(self, error):
        return RunError(f"The Ray cluster failed: {_reason(error)}")


def _reason(error):
    """The line of an error of Ray that says most; the last one of an error in an actor."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_remote = type(error).__name__.startswith("RayTaskError")
    line = (lines[-1] if is_remote else lines[0]) if lines else type(error).__name__
    return line.rstrip(".") + "."


def _reachable(address):
    """Host and port of an address at which something answers."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise UserError(
            f"--ray_address={address} is no address. Expected HOST:PORT of the head of a cluster, "
            "as `ray start --head` prints it."
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"There is no Ray cluster at --ray_address={address}: {reason}. Start one with `ray "
            "start --head`, or leave out --ray_address to compute on this machine."
        ) from None
    return host, int(port)


def _cluster_at(head):
    """The id of the cluster of a head; it changes when the head is started again.

    Raises:
        OSError: if the head does not answer.
    """
    import ray

    try:
        # A new one each time: whatever uses the old one ends the process if the id has changed.
        return ray._raylet.GcsClient(address="{}:{}".format(*head)).cluster_id
    except ray.exceptions.RpcError as error:
        raise TimeoutError(str(error)) from None


@contextlib.contextmanager
def _own_handlers():
    """Keeps the handlers of signals, one of which `ray.init` replaces."""
    import signal

    is_main = threading.current_thread() is threading.main_thread()
    kept = signal.getsignal(signal.SIGTERM)
    yield
    if is_main:
        signal.signal(signal.SIGTERM, kept)
