"""Folders that are made once for all processes of a test run."""

import fcntl
import os
import shutil


def shared_folder(tmp_path_factory, name, make):
    """A folder that the first process that asks for it fills; the others wait for it.

    Args:
        tmp_path_factory: the fixture.
        name: of the folder.
        make: function of an empty folder, which fills it. It is called again in the next process
            if it raises.

    Returns:
        The folder. No test may change it.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # Without workers, other runs of the tests have their folders there.
    folder, finished = root / f"shared-{name}", root / f"shared-{name}.finished"
    with open(root / f"shared-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder
