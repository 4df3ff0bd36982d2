"""Models from untrusted sources, and the memory that reading them takes.

usage: python -m tests.pipelines.stored_models.hostile_models FOLDER

Runs commands on each kind of model that `write_all` wrote into FOLDER, see `commands_for`. Prints
one JSON object: kind -> command -> exit code, stderr, and the growth of the peak resident memory in
MB. All commands run in this one process, whose memory may grow by at most 4 GB, so that a defect
does not affect the machine.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import resource
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from unittest import mock

import h5py
import keras
import numpy as np
import tensorflow as tf

import vit_tf
from pipelines.cli import command as frame
from pipelines.cli import request
from pipelines.runs import checkpoint_weights, checkpoints
from pipelines.runs.json_file import write_json
from pipelines.runs.workdir import Workdir
from tests.pipelines.tiny import tiny_experiment
from tests.vit_tf import tiny
from vit_tf.weights import published_rules

COMMANDS = ("evaluate", "predict", "export")
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
KERNEL = "layers/patch_embedding/vars/0"


@functools.cache
def model():
    """The model that all kinds change; no kind changes the object."""
    return tiny.model(num_classes=10)


@functools.cache
def _genuine():
    """The bytes of a `.keras` file that Keras wrote."""
    with tempfile.TemporaryDirectory() as folder:
        model().save(os.path.join(folder, "model.keras"))
        return pathlib.Path(folder, "model.keras").read_bytes()


def genuine(path):
    """Writes a normal `.keras` file of Keras; returns `(config.json as a dict, weights)`."""
    path.write_bytes(_genuine())
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(CONFIG)), file.read(WEIGHTS)


def packed(path, top, content, compression=zipfile.ZIP_STORED):
    """Writes a `.keras` file; `top` is its configuration as a dict or text."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in ((CONFIG, top), (WEIGHTS, content)):
            if data is not None:
                file.writestr(name, json.dumps(data) if isinstance(data, dict) else data)


def claiming(**fields):
    """A configuration that does not belong to the weights."""

    def make(path):
        top, content = genuine(path)
        top["config"]["config"] |= fields
        packed(path, top, content)

    return make


def top_level(**fields):
    """A configuration of an object that is not a model."""

    def make(path):
        top, content = genuine(path)
        packed(path, top | fields, content)

    return make


def dtype_policy(value):
    def make(path):
        top, content = genuine(path)
        top["config"]["dtype"] = value
        packed(path, top, content)

    return make


def config_text(text):
    return lambda path: packed(path, text, genuine(path)[1])


def changed_weights(change):
    """Weights after a call of `change(file)`, with `file` open for writing."""

    def make(path):
        top, content = genuine(path)
        stream = io.BytesIO(content)
        with h5py.File(stream, "r+") as file:
            change(file)
        packed(path, top, stream.getvalue())

    return make


def replace_kernel(**options):
    """The patch kernel as an array of 1 GB: never written, or compressed zeros."""

    def change(file):
        del file[KERNEL]
        dataset = file.create_dataset(KERNEL, (2**28,), "float32", chunks=(2**20,), **options)
        if options:  # Compressed once: all chunks are the same.
            chunk = zlib.compress(bytes(4 * 2**20))
            for begin in range(0, 2**28, 2**20):
                dataset.id.write_direct_chunk((begin,), chunk)

    return change


def link_kernel(link):
    def change(file):
        del file[KERNEL]
        file[KERNEL] = link

    return change


def truncated(share):
    def make(path):
        genuine(path)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return make


def weights_bomb(path):
    """Half a gigabyte of zeros, which compress to a small file."""
    top, _ = genuine(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(CONFIG, json.dumps(top))
        with file.open(WEIGHTS, "w") as stream:
            for _ in range(2**9):
                stream.write(bytes(2**20))


def config_bomb(path):
    """A configuration of 64 MB of spaces, in a file that is large enough to make this plausible."""
    top, content = genuine(path)
    content += np.random.default_rng(0).bytes(2**23)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(CONFIG, json.dumps(top) + " " * 2**26)
        file.writestr(WEIGHTS, content)


def lying_directory(path):
    """The directory states small sizes, but a member inflates to half a gigabyte."""
    shutil.copy(place(path.parent, "weights bomb"), path)
    data = bytearray(path.read_bytes())
    last = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, last + 24, path.stat().st_size)
    path.write_bytes(data)


def encrypted(path):
    """Sets only the encryption flag; the data is not encrypted."""
    genuine(path)
    data = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = data.find(magic)
        while place >= 0:
            data[place + at] |= 1
            place = data.find(magic, place + 4)
    path.write_bytes(data)


def saved_model(path):
    """A SavedModel that is not one of our exports."""
    module = tf.Module()
    module.f = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, path)


@functools.cache
def _trained():
    return vit_tf.create_model(tiny_experiment().model.config(10))


def unfinished_run(**fields):
    """A workdir with a checkpoint of a small model, and a configuration of another one."""

    def make(path):
        run, experiment = Workdir(path), tiny_experiment()
        run.create(experiment)
        state = tf.train.Checkpoint(model=checkpoint_weights.weights_by_path(_trained().weights))
        checkpoints.CheckpointStore(run.checkpoints, state, keep_last=1, keep_every=0).save(1)
        write_json(run.manifest, {"data": {"labels": list("0123456789")}})
        top = experiment.to_dict()
        top["model"] |= fields
        write_json(run.config, top)

    return make


def sidecar(**fields):
    """A published file with a sidecar that has another configuration."""

    def make(path):
        rule = vit_tf.Preprocessing(image_size=model().config.image_size)
        vit_tf.save_npz(model(), path, rule)
        beside = path.with_name(path.name + ".json")
        content = json.loads(beside.read_text())
        content["config"] |= fields
        beside.write_text(json.dumps(content))

    return make


def zeros(path):
    """A published file of a real architecture: 200 MB of zeros, which compress to a small file."""
    with tiny.unallocated():
        fields = {"hidden_size": 512, "mlp_size": 2048, "layers": 16, "heads": 8}
        model = vit_tf.create_model(tiny.config(num_classes=10, image_size=12, **fields))
        shapes = {k: v for rule in published_rules(model) for k, v in rule.shapes.items()}
    np.savez_compressed(path, **{key: np.zeros(v, np.float32) for key, v in shapes.items()})


LARGER = "describes a larger model than it holds weights for"
# Kind -> (function that writes it, text in the error). Kinds without a suffix are `.keras` files.
KINDS = {
    "wide": (claiming(hidden_size=10**5, heads=1), LARGER),
    "deep": (claiming(layers=1000), LARGER),
    "deep and thin": (claiming(layers=1000, hidden_size=1, mlp_size=1, heads=1), LARGER),
    "many classes": (claiming(num_classes=10**7), LARGER),
    "wide mlp": (claiming(mlp_size=5 * 10**5), LARGER),
    "wide pre-logits": (claiming(representation_size=10**5), LARGER),
    "many positions": (claiming(image_size=[10**4, 10**4]), LARGER),
    "endless numbers": (claiming(hidden_size=10**4000, heads=1), "from 1 to 131072"),
    "huge images": (
        claiming(image_size=[10**4, 10**4], position_embedding="none"),
        "reads images of (10000, 10000)",
    ),
    "text for a number": (claiming(hidden_size="12"), "hidden_size must be an int"),
    "nan": (claiming(layer_norm_epsilon=float("nan")), "must be finite"),
    "unknown field": (claiming(hidden_sizes=12), "Unknown model field"),
    "no fields": (top_level(config={"config": None}), "dictionary of its fields"),
    "lambda": (
        top_level(module="keras.layers", class_name="Lambda", registered_name=None),
        "holds a 'Lambda'",
    ),
    "other class": (
        top_level(module="os", class_name="system", registered_name=None),
        "holds a 'system'",
    ),
    "object for a dtype": (
        dtype_policy({"module": "keras", "class_name": "Dense", "config": {"units": 10**12}}),
        "dtype policy",
    ),
    "quantized": (
        dtype_policy({"class_name": "DTypePolicy", "config": {"name": "int8_from_float32"}}),
        "dtype policy",
    ),
    "list": (config_text("[1, 2]"), "not a model Keras can read"),
    "no json": (config_text("{"), "not a model Keras can read"),
    "nested": (config_text("[" * 10**5), "not a model Keras can read"),
    "long number": (config_text('{"config": ' + "9" * 10**5 + "}"), "not a model Keras can read"),
    "no configuration": (lambda path: packed(path, None, genuine(path)[1]), CONFIG),
    "no weights": (lambda path: packed(path, genuine(path)[0], None), WEIGHTS),
    "text for weights": (
        lambda path: packed(path, genuine(path)[0], b"hello"),
        "not a model Keras can read",
    ),
    "lzma": (lambda path: packed(path, *genuine(path), zipfile.ZIP_LZMA), "compressed in an"),
    "weights bomb": (weights_bomb, "536,870,912 of model.weights.h5"),
    "config bomb": (config_bomb, "bytes of config.json"),
    "lying directory": (lying_directory, "not a model Keras can read"),
    "array never written": (changed_weights(replace_kernel()), "claims the shape (268435456,)"),
    "array of zeros": (
        changed_weights(replace_kernel(compression="gzip")),
        "claims the shape (268435456,)",
    ),
    "soft link": (changed_weights(link_kernel(h5py.SoftLink("/head/vars/0"))), LARGER),
    "external link": (
        changed_weights(link_kernel(h5py.ExternalLink("/etc/passwd", "/"))),
        LARGER,
    ),
    "swapped arrays": (
        changed_weights(lambda file: file.move("head", "tail")),
        "not a model Keras can read",
    ),
    "encrypted": (encrypted, "not a model Keras can read"),
    "sequential": (
        lambda path: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(path),
        "holds a 'Sequential'",
    ),
    "empty": (lambda path: path.touch(), "not a model Keras can read"),
    "text": (lambda path: path.write_text("hello"), "not a model Keras can read"),
    "cut in the middle": (truncated(0.5), "not a model Keras can read"),
    "without its end": (truncated(0.995), "not a model Keras can read"),
    "pipe": (os.mkfifo, "is not a file"),
    "folder named.keras": (os.mkdir, "holds no trained model"),
    "folder/": (os.mkdir, "holds no trained model"),
    "saved_model/": (saved_model, "SavedModel"),
    "wide run/": (unfinished_run(hidden_size=10**5), LARGER),
    "deep run/": (unfinished_run(layers=1000), LARGER),
    "run of huge images/": (
        unfinished_run(image_size=[16000, 16000], position_embedding="none"),
        "reads images of (16000, 16000)",
    ),
    "wide sidecar.npz": (sidecar(hidden_size=3 * 2**15), "has hidden_size=98304"),
    "huge images.npz": (sidecar(image_size=[10**4, 10**4]), "has grid="),
    "zeros.npz": (zeros, "weights, which do not fit into them"),
    "missing.npz": (lambda path: None, "There is no model"),
}


def place(folder, kind):
    """The path of a kind in the folder."""
    name = kind.rstrip("/")
    return folder / (name if name != kind or "." in name else name + ".keras")


def write(folder, kind):
    """Writes a kind into the folder; returns its path."""
    path = place(folder, kind)
    KINDS[kind][0](path)
    return path


def commands_for(kind):
    """The commands that read this kind: one, since all read models in the same way.

    SavedModels are an exception: `predict` takes some.
    """
    if kind == "saved_model/":
        return COMMANDS
    return [COMMANDS[list(KINDS).index(kind) % len(COMMANDS)]]


def write_all(folder):
    """Writes every kind, `genuine.keras`, and an image to predict."""
    genuine(folder / "genuine.keras")
    tf.io.write_file(str(folder / "image.png"), tf.io.encode_png(np.zeros([4, 4, 3], np.uint8)))
    for kind in KINDS:
        write(folder, kind)


def call(command, path):
    """Calls a command in this process; returns its exit code and its stderr."""
    module = importlib.import_module(f"pipelines.{command}")
    more = {
        "predict": [str(path.parent / "image.png")],
        "export": [f"--output={path.parent / 'output'}"],
    }
    sys.argv, stderr = [command, f"--model={path}", *more.get(command, [])], io.StringIO()
    positional = getattr(module, "POSITIONAL", None)
    taken = getattr(module, "SHARED_FLAGS", request.SHARED_FLAGS)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(stderr),
        mock.patch.object(frame, "_end", sys.exit),
    ):
        try:
            frame.run(
                module.main,
                module.DESCRIPTION,
                module.define,
                positional,
                shared_flags=taken,
            )
        except SystemExit as end:
            return end.code, stderr.getvalue()


def memory(field):
    """A line of /proc/self/status in MB; VmHWM is the largest resident memory so far."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":")) / 1024


def main(folder):
    folder = pathlib.Path(folder)
    for command in ("evaluate", "predict"):
        code, said = call(command, folder / "genuine.keras")
        assert code == 0, said
    limit = int((memory("VmSize") + 4096) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    results = {}
    for kind in KINDS:
        results[kind] = {}
        for command in commands_for(kind):
            before = memory("VmHWM")
            code, said = call(command, place(folder, kind))
            results[kind][command] = [code, said, memory("VmHWM") - before]
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
