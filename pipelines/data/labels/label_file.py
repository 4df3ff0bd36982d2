"""Reads the file of `--labels`: the names of a model's classes, in the order of its outputs."""

from pipelines.data.labels.encoding import is_unicode
from pipelines.data.labels.files import read_class_file
from pipelines.errors import UserError

_FORMS = "Expected one name per line, or a JSON list in a .json file."


def read_label_file(path) -> tuple[str, ...]:
    """The names in a file: one per line or, if its name ends in .json, a JSON list; in UTF-8.

    Raises:
        UserError: if the file cannot be read, is too large or empty, or a name is empty or no text.
    """
    names = read_class_file(path, "--labels", list, _FORMS)
    if names in ([], [""]):
        raise UserError(f"--labels {path} is empty. {_FORMS}")
    for number, name in enumerate(names, start=1):
        if not isinstance(name, str) or not name.strip() or not is_unicode(name):
            raise UserError(
                f"--labels {path}: name {number} is {str(name)[:80]!r}. Expected text, and no "
                "empty lines."
            )
    return tuple(names)


def wrong_count(labels, num_classes) -> UserError:
    """The error for names of another number of classes."""
    return UserError(f"--labels has {len(labels):,} names, the model has {num_classes:,} classes.")
