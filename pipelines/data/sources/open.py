"""Where examples come from, by name: image folders, lists, TFRecord files, or a TFDS data set.

Nothing here uses the network.
"""

from pipelines.data.sources.folders import open_folder
from pipelines.data.sources.lists import open_list
from pipelines.data.sources.records import open_records
from pipelines.data.sources.tfds_source import open_tfds

# `data.name=<kind>:<path>`; every other name is one of TFDS.
_KINDS = {"folder": open_folder, "list": open_list, "tfrecord": open_records}


def open_source(name, split, data_dir=None):
    """Opens a split of a data set.

    | name | |
    | --- | --- |
    | `folder:<path>` | images in a folder per class, see `folders.py` |
    | `list:<path>` | a .csv or .jsonl file with the path and the label of each image, `lists.py` |
    | `tfrecord:<path>` | a folder of TFRecord files, see `records.py` |
    | `name[/config][:version]` | TFDS; a built-in data set is prepared on first use, every other \
one must have been prepared before |

    Args:
        name: see above.
        split: split in TFDS notation: "train", "train[:90%]", "train[100:]", "train+validation".
        data_dir: directory of prepared data sets, None is TFDS' own default; relative paths of
            the other kinds begin here, or else in the current directory.

    Returns:
        A `DataSource`.

    Raises:
        DataError: if there is no such data set or split, its files are not there, or it holds no
            labelled images.
    """
    kind, separator, path = name.partition(":")
    if separator and kind in _KINDS:
        return _KINDS[kind](path, split, data_dir)

    return open_tfds(name, split, data_dir)
