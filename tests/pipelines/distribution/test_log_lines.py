"""Where log lines go; `test_run_files.py` tests run.log."""

import io
import logging

import pytest

from pipelines.distribution.log_lines import LineHandler, attached


class _Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_line_is_the_message_and_only_attached_handlers_get_it(caplog):
    before = logging.getLogger("pipelines").level
    stream, log = io.StringIO(), logging.getLogger("pipelines.somewhere")
    with attached(LineHandler(stream), propagate=False):
        log.info("100 % of it")
        log.warning("two\nlines")
    log.error("afterwards")
    assert stream.getvalue() == "100 % of it\ntwo\nlines\n"
    assert [record.getMessage() for record in caplog.records] == ["afterwards"]
    assert logging.getLogger("pipelines").level == before


def test_a_line_that_cannot_be_written_ends_the_command():
    with pytest.raises(OSError, match="No space left"), attached(LineHandler(_Full())):
        logging.getLogger("pipelines").info("a line")
