"""Where the messages of `pipelines` go: to people as they are, and to run.log with their times."""

import contextlib
import logging
import sys
import time


@contextlib.contextmanager
def attached(handler, propagate=True):
    """Lets a `logging.Handler` get the messages of `pipelines` in a block, and yields it.

    Args:
        handler: the `logging.Handler`.
        propagate: whether the handlers of the root logger get the messages too. Commands say no:
            absl, which Orbit uses, adds one that would print each line again.
    """
    logger = logging.getLogger("pipelines")
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = propagate and logger.propagate
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class LineHandler(logging.StreamHandler):
    """Writes each message to a stream at once, so that pipes get it immediately.

    Attributes:
        begin: text before each line.
    """

    begin = ""

    def format(self, record):
        """See `logging.Handler.format`."""
        return "\n".join(self.begin + line for line in super().format(record).split("\n"))

    def handleError(self, record):
        """Ends the command: logging would print a traceback and go on."""
        raise sys.exception()


_name = ""


def name_process(text):
    """Begins each line that this process logs to a stream with a text."""
    global _name
    _name = text
    for handler in _line_handlers():
        handler.begin = text


def process_name() -> str:
    """The text of `name_process`, for lines that are not logged."""
    return _name


def only_warnings():
    """Leaves to the chief the lines that each worker would log in the same words."""
    for handler in _line_handlers():
        handler.setLevel(logging.WARNING)


def _line_handlers():
    handlers = logging.getLogger("pipelines").handlers
    return [handler for handler in handlers if isinstance(handler, LineHandler)]


class LogFile(logging.Handler):
    """Appends each message to a file, each of its lines with the time.

    Nothing is written before `open`: a run that is refused leaves its workdir as it is.
    """

    def __init__(self):
        super().__init__()
        self._path, self._lines = None, []

    @contextlib.contextmanager
    def errors(self):
        """Adds the exception that ends a `with` block."""
        try:
            yield
        except BaseException as error:
            message = f"error: {str(error) or type(error).__name__}"
            self.handle(logging.makeLogRecord({"msg": message}))
            raise

    def open(self, path):
        """Writes the lines so far to a file, and from now on each line immediately."""
        with self.lock:
            self._path = path
            self._write()

    def emit(self, record):
        """See `logging.Handler.emit`, which is called with the lock."""
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        self._lines += [f"{now} {line}\n" for line in record.getMessage().splitlines()]
        if self._path is not None:
            self._write()

    def _write(self):
        # On a full disk the next checkpoint ends the run, with a better message.
        # Names of files may have bytes that are not UTF-8.
        how = {"encoding": "utf-8", "errors": "backslashreplace"}
        with contextlib.suppress(OSError), open(self._path, "a", **how) as file:
            file.writelines(self._lines)
        self._lines = []
