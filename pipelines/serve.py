"""Serves a model on this machine: a REST interface and a page to try it."""

import contextlib
import re

from absl import flags

from pipelines.cli import command, model_flags
from pipelines.errors import UserError

DESCRIPTION = """Serves a model for trying: a page, where an image can be dropped, and the REST
interface of TensorFlow Serving, /v1/models/vit:predict; /healthz answers when the model is warm. A
client that is written for it works with TensorFlow Serving too, which is for production.

It listens on this machine only, unless --host says otherwise: it knows no users or passwords.
SIGTERM and Ctrl-C end it when what has come is answered.

example: python -m pipelines.serve --model runs/pretrain-digits
"""
LOGS_TO = "stdout"
SHARED_FLAGS = ("workdir",)


def define(values):
    own = {"flag_values": values}
    model_flags.define_model(
        values, f"{model_flags.MODEL_KINDS}, or exported SavedModel, LiteRT or ONNX file"
    )
    model_flags.define_fused(values)
    flags.DEFINE_string("host", "127.0.0.1", "Name or address to listen on.", **own)
    flags.DEFINE_integer("port", 8501, "0: any free one.", 0, 65535, **own)
    flags.DEFINE_string("name", "vit", "Name of the model in the paths of REST.", **own)
    flags.DEFINE_integer(
        "waiting", 64, "Requests that may wait; more are answered 503.", 0, 500, **own
    )
    flags.DEFINE_integer("max_images", 64, "Images in a request.", 1, **own)
    flags.DEFINE_integer(
        "max_mb", 32, "Size of a request, in units of 2**20 bytes.", 1, 1024, **own
    )
    flags.DEFINE_integer(
        "max_pixels",
        None,
        "The most pixels of an encoded image, by default 50,000,000; not for a SavedModel, which "
        "has its own limit.",
        lower_bound=1,
        **own,
    )
    flags.DEFINE_integer(
        "timeout",
        30,
        "Seconds for a request to arrive, to wait for others, and to read an answer.",
        1,
        3600,
        **own,
    )


def main(values, arguments):
    del arguments
    if not re.fullmatch(r"[\w.-]+", values.name, re.ASCII):
        raise UserError(
            f"--name={values.name} is not possible. Use letters, digits, _, - and dots."
        )
    try:
        from pipelines.serving.http import server
    except ModuleNotFoundError as error:
        if error.name != "h11":
            raise
        raise UserError(
            "pipelines.serve needs h11, which is not installed. Install it: "
            "pip install '.[train,serve]'."
        ) from None
    # First: what is wrong with it is said before the model is read.
    with contextlib.closing(server.bind(values.host, values.port)) as bound:
        from pipelines.serving.http.model import open_model
        from pipelines.serving.http.run import Limits, run

        path, weights = model_flags.model_path_and_weights(values)
        opening = model_flags.opening(values)
        model = open_model(path, weights, values.labels, opening, values.max_pixels)
        limits = Limits(values.waiting, values.max_images, values.max_mb, values.timeout)
        run(model, bound, values.name, limits)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
