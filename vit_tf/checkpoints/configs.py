"""Configurations of the models that checkpoint files hold."""


def build_config(kind, path, **fields):
    """A configuration of class `kind` with the values in a file.

    Raises:
        ValueError: if the values are not valid; the message names the file and the reason.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds a model that vit_tf does not support: {error}") from None
