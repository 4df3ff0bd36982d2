"""Suggests config paths and flags for wrong names: `--set lr=0.1`, `--output_dir=runs/a`."""

import shlex

from vit_tf.config.near_names import as_question, near_names
from vit_tf.config.other_keywords import FIELDS

# Names in other projects -> config path. The last name of a path needs no entry.
_PATHS = {
    # The data set decides the number of classes.
    name: f"model.{field}"
    for name, field in FIELDS.items()
    if field != "num_classes"
} | {
    "accum_steps": "train.accumulate_steps",
    "amp": "model.dtype",
    "arch": "model.name",
    "bs": "train.batch_size",
    "clip_grad": "optimizer.clip_norm",
    "crop_pct": "data.crop_fraction",
    "data": "data.name",
    "data_path": "data.name",
    "dataset": "data.name",
    "dataset_name": "data.name",
    "ema": "train.ema_decay",
    "grad_clip": "optimizer.clip_norm",
    "gradient_accumulation_steps": "train.accumulate_steps",
    "iterations": "train.steps",
    "lr": "optimizer.learning_rate",
    "lr_scheduler": "schedule.decay",
    "max_grad_norm": "optimizer.clip_norm",
    "max_steps": "train.steps",
    "mixed_precision": "model.dtype",
    "model": "model.name",
    "model_name": "model.name",
    "num_epochs": "train.epochs",
    "num_steps": "train.steps",
    "num_train_epochs": "train.epochs",
    "opt": "optimizer.name",
    "optimizer": "optimizer.name",
    "precision": "model.dtype",
    "pretrained": "init_from",
    "save_steps": "train.checkpoint_every",
    "scheduler": "schedule.decay",
    "smoothing": "train.label_smoothing",
    "val_split": "data.eval_split",
    "warmup": "schedule.warmup_steps",
    "wd": "optimizer.weight_decay",
}
# Names in other projects -> flags; the first of them that the command has is suggested.
_FLAGS = {
    "checkpoint": ("init_from", "model", "workdir"),
    "ckpt": ("init_from", "model", "workdir"),
    "config_file": ("config",),
    "log_dir": ("workdir",),
    "logdir": ("workdir",),
    "model_dir": ("model", "workdir"),
    "model_path": ("model", "init_from"),
    "output_dir": ("output", "workdir"),
    "pretrained": ("init_from",),
    "recipe": ("experiment",),
    "resume": ("workdir",),
    "save_dir": ("output", "workdir"),
    "topk": ("top",),
}
# Values of these names do not fit the suggested path, so the suggestion leaves them out.
_SWITCHES = ("amp", "ema", "pretrained")


def path_hint(name, known) -> str:
    """Returns the end of a message about an unknown path: " Did you mean ...?", or ""."""
    return as_question(_paths(name, known) or _near_paths(name, known))


def flag_hint(name, value, flags, paths) -> str:
    """Returns the end of a message about an unknown flag: flags and `--set` paths to use instead.

    Args:
        name: name of the flag, without leading dashes.
        value: value that was assigned to the flag, "" without one.
        flags: names of the flags that the command has.
        paths: config paths that its `--set` takes; empty if it has no `--set`.
    """
    is_told = value and _plain(name) not in _SWITCHES
    value = shlex.quote(value) if is_told else ""
    near_flags = [flag for flag in _FLAGS.get(_plain(name), ()) if flag in flags][:1]
    settings = [] if near_flags else _paths(name, paths)
    if not near_flags and not settings:
        near_flags, settings = near_names(_plain(name), flags), _near_paths(name, paths)
    found = [f"--{flag}" + f"={value}" * bool(value) for flag in near_flags]
    found += [f"--set {path}={value or '...'}" for path in settings]
    return as_question(found[:3]) or " --help lists the flags."


def _plain(name):
    return name.lower().replace("-", "_")


def _paths(name, known):
    """Returns up to three paths for `name`: equal, with the same last name, or from `_PATHS`."""
    name = _plain(name)
    if name in known:
        return [name]
    name = name.rpartition(".")[2]
    if found := [path for path in known if path.rpartition(".")[2] == name]:
        return found[:3]
    return [_PATHS[name]] if _PATHS.get(name) in known else []


def _near_paths(name, known):
    """Returns up to three paths whose spelling, or whose last name, is similar to `name`."""
    if "." in name:
        return near_names(name, known)
    ends = near_names(_plain(name), [path.rpartition(".")[2] for path in known], cutoff=0.7)
    return [path for end in ends for path in known if path.rpartition(".")[2] == end][:3]
