"""Files of a run that grow line by line: its metrics, its log, lists of images."""

import os
import shutil
import tempfile
import time
import weakref

from vit_tf.files import storage


class GrowingFiles:
    """Files in a folder to which lines are appended.

    Object stores cannot append. So the files of a folder behind a URL are local copies, which
    `upload` writes as whole objects. Those of a local folder are the files themselves.

    Args:
        folder: path or URL of the folder.
    """

    def __init__(self, folder):
        self._folder = folder
        self._copies = None
        self._uploaded = {}  # Name -> size and time of the copy that was uploaded last.
        self._time = 0.0

    def path(self, name) -> str:
        """The path of a file on a local disk; the first call copies what is at the URL."""
        if not storage.is_url(self._folder):
            return os.path.join(self._folder, name)
        if self._copies is None:
            self._copies = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        path, url = os.path.join(self._copies, name), storage.join(self._folder, name)
        if name not in self._uploaded:
            if storage.exists(url):
                with open(path, "wb") as file:
                    file.writelines(storage.chunks(url))
            self._uploaded[name] = _state(path)
        return path

    def upload(self, seconds=0.0):
        """Writes the copies that have changed; does nothing for a local folder.

        Args:
            seconds: nothing is written until this time has passed since the last upload.
        """
        if self._copies is None or time.monotonic() - self._time < seconds:
            return
        self._time = time.monotonic()
        for name, before in self._uploaded.items():
            path = os.path.join(self._copies, name)
            if (state := _state(path)) not in (before, None):
                storage.upload(path, storage.join(self._folder, name))
                self._uploaded[name] = state


def _state(path):
    return storage.size_and_time(path) if os.path.exists(path) else None
