"""Flags that several commands have. `command.py` parses them."""

import json
import sys
import typing

from absl import flags

from pipelines.config.names import PACKED_PRECISIONS, Strategy, Weights
from pipelines.errors import UserError

# Flags that commands share. Each command lists the ones that it takes.
WORKER_FLAGS = ("workers", "worker_index", "worker_wait")
DEVICE_FLAGS = ("strategy", "logical_cpus", "tpu", "zone", "project", *WORKER_FLAGS)
SHARED_FLAGS = ("experiment", "workdir", "set", *DEVICE_FLAGS)
# The kinds of `--model` and `--init_from`, for `--help`.
MODEL_KINDS = (
    "Workdir, .npz, .keras or .safetensors file, folder of Hugging Face or timm, or name of "
    "published weights"
)
# The reason why a command does not take a flag.
WHY_NOT_TAKEN = {
    "experiment": "it has no recipe to choose",
    "workdir": "it has no run of its own",
    "set": "it has no recipe to change, and a model keeps its training settings",
    **dict.fromkeys(DEVICE_FLAGS, "it computes on one device"),
}


def define_shared(names):
    """Returns the flags of these members of `SHARED_FLAGS`."""
    values = flags.FlagValues()
    shared = {"flag_values": values}
    flags.DEFINE_string("experiment", "digits", "The recipe to start from.", **shared)
    flags.DEFINE_string("workdir", None, "Directory of the run.", **shared)
    flags.DEFINE_multi_string(
        "set",
        [],
        "<path.to.field=value>: Change one field of the experiment, as in --set train.steps=100. "
        "Repeat it.",
        **shared,
    )
    flags.DEFINE_enum(
        "strategy", "auto", typing.get_args(Strategy), "The devices to run on.", **shared
    )
    flags.DEFINE_integer(
        "logical_cpus", 1, "Split the CPU into this many devices.", lower_bound=1, **shared
    )
    flags.DEFINE_string("tpu", "", "Name or address of the TPU; local on a TPU VM.", **shared)
    flags.DEFINE_string("zone", None, "Cloud zone of the TPU.", **shared)
    flags.DEFINE_string("project", None, "Cloud project of the TPU.", **shared)
    flags.DEFINE_string(
        "workers",
        None,
        "For --strategy=multi_worker: HOST:PORT of all workers, with commas between them; by "
        "default from TF_CONFIG or SLURM's variables.",
        **shared,
    )
    flags.DEFINE_integer("worker_index", None, "The number of this worker, from 0.", **shared)
    flags.DEFINE_float(
        "worker_wait", 300.0, "Seconds to wait for the other workers.", lower_bound=0, **shared
    )
    for name in set(SHARED_FLAGS).difference(names):
        delattr(values, name)
    return values


def refuse(values, given, names, why):
    """Refuses flags that have no meaning beside a flag that is given.

    Args:
        values: parsed flags.
        given: the flag, or the flag and its value: "paper", "format=onnx".
        names: names of the flags that it does not take.
        why: the reason, for the message.
    """
    for name in names:
        if values[name].present:
            raise UserError(f"--{given} takes no --{name}: {why}. Leave one of them out.")


def require(values, owner, names):
    """Refuses flags that have a meaning only beside another flag, which is missing.

    Args:
        values, names: as for `refuse`.
        owner: the missing flag, or the flag and its value.
    """
    for name in names:
        if values[name].present:
            raise UserError(f"--{name} belongs to --{owner}. Add it, or leave out --{name}.")


def define_config(values):
    """Adds the flags that belong to `--experiment`."""
    flags.DEFINE_string(
        "config",
        None,
        "A config.json to start from instead of a recipe, for example from a workdir.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "list", False, "Print the recipes and the names of models, and end.", flag_values=values
    )


def define_model(values, kinds=MODEL_KINDS, labels=True):
    """Adds `--model`, `--weights` and `--labels`, for commands that read a model.

    Args:
        values: the flags.
        kinds: the kinds of `--model`, for `--help`.
        labels: whether to add `--labels`; False for commands that do not read the head.
    """
    flags.DEFINE_string(
        "model",
        None,
        f"{kinds}; by default --workdir, else the model shipped with the package.",
        flag_values=values,
    )
    define_weights(values)
    if labels:
        flags.DEFINE_string(
            "labels",
            None,
            "File with the names of the classes in the order of the model's outputs, one per line "
            "or, in a .json file, a JSON list; by default the names that the model stores.",
            flag_values=values,
        )


def define_weights(values, default="final"):
    """Adds `--weights`: the choice of weights in a workdir."""
    flags.DEFINE_enum(
        "weights",
        default,
        typing.get_args(Weights),
        "For a workdir: its newest weights, their Polyak average (train.ema_decay), or the weights "
        "of the checkpoint with the best evaluation (train.keep_best).",
        flag_values=values,
    )


def define_fused(values):
    """Adds `--fused` and its `--precision`, for commands that only run a model."""
    flags.DEFINE_bool(
        "fused",
        False,
        "Pack the weights and run all encoder blocks in one compiled op, which is faster on CPUs.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "precision",
        None,
        list(PACKED_PRECISIONS),
        "With --fused, the precision of the blocks; by default that of the training.",
        flag_values=values,
    )


def define_json(values, text="Print one JSON object instead of text."):
    """Adds `--json`, for commands that print results."""
    flags.DEFINE_bool("json", False, text, flag_values=values)


def print_result(values, result, text):
    """Prints a result as JSON with `--json`, else the text that the function `text` returns."""
    if values.json:
        print_json(result)
    else:
        print(text(result))


def print_json(value):
    """Prints a value as one line of JSON; text that the terminal cannot show is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # A file name may have bytes that are not text.
        text = json.dumps(value)
    print(text)


def define_output(values, text):
    """Adds `--output`, for commands that write something other than a workdir."""
    flags.DEFINE_string("output", None, text, flag_values=values)


def define_engine(values):
    """Adds the flags of the engine, for commands whose work can be divided among machines."""
    flags.DEFINE_enum(
        "engine",
        "local",
        ["local", "ray"],
        "Where to compute: in this process, or in processes of a Ray cluster.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "With --engine=ray, HOST:PORT of the head of a cluster to join, on one of its machines; by "
        "default one is started on this machine, and ended.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "ray_cores",
        1,
        "With --engine=ray, cores of each process; there are as many processes as fit.",
        lower_bound=1,
        flag_values=values,
    )


def define_training(values):
    """Adds `--extend` and `--dry_run`, for commands that train."""
    flags.DEFINE_bool(
        "extend",
        False,
        "Go on with the run in --workdir up to another train.steps, with the schedule for that "
        "number of steps.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Print the configuration, the size and cost of the model and the shapes of the first "
        "batch, and end.",
        flag_values=values,
    )
