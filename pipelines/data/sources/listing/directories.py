"""Lists the folders and images in a folder of images; follows links, without going round."""

import os

from pipelines.data.skipped_files import is_hidden
from pipelines.errors import DataError
from vit_tf.files import storage
from vit_tf.images.decoding import SUFFIXES


def find_images(folder):
    """Returns the paths of the images below a folder, of other files, and of links upwards."""
    images, others, upwards = [], [], []
    waiting, seen = [folder], set()
    while waiting:
        directory = waiting.pop()
        if _leads_upwards(directory):
            upwards.append(directory)
            continue
        if (identity := _identity(directory)) in seen:
            continue
        seen.add(identity)
        folders, files = list_directory(directory)
        # Reversed, because the last entry is visited next: folders are visited in the order of
        # their names. The order matters if two links lead to the same folder.
        waiting += [os.path.join(directory, name) for name in reversed(folders)]
        for name in files:
            path = os.path.join(directory, name)
            (images if is_image(name) else others).append(path)
    return images, others, upwards


def is_image(name) -> bool:
    """Whether a file is read as an image: by its suffix, in any letter case."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _leads_upwards(path):
    """Whether a path is a link to a folder that contains it, directly or through other links."""
    if storage.is_url(path) or not os.path.islink(path):
        return False
    target, parent = os.path.realpath(path), os.path.dirname(path)
    if os.path.join(os.path.realpath(parent), "").startswith(os.path.join(target, "")):
        return True
    while parent != os.path.dirname(parent):
        if os.path.realpath(parent) == target:
            return True
        parent = os.path.dirname(parent)
    return False


def _identity(directory):
    """Returns the identity of a directory, the same for every link that leads to it."""
    if storage.is_url(directory):
        return directory
    try:
        status = os.stat(directory)
    except OSError as error:
        raise directory_error(directory, error) from None
    return status.st_dev, status.st_ino


def list_directory(directory):
    """Returns the sorted names of the folders, and of all other entries, in a directory."""
    folders, others = [], []
    try:
        if storage.is_url(directory):
            listed = storage.list_folder(directory, SUFFIXES)
            return tuple([name for name in names if not is_hidden(name)] for names in listed)
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    continue
                (folders if _is_folder(entry) else others).append(entry.name)
    except OSError as error:
        raise directory_error(directory, error) from None
    return sorted(folders), sorted(others)


def directory_error(directory, error):
    """Returns the `DataError` for a folder that cannot be listed."""
    return DataError(
        f"The folder {directory[:500]} cannot be read: {error.strerror}. Change its permissions, "
        f"or remove it."
    )


def _is_folder(entry):
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
