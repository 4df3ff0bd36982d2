"""Refuses names of an earlier version; the message has the new names."""

from pipelines.errors import UserError

# Old -> new. A model field counts as old only if the model has no field of that name: `width` is a
# field of a ResNet; in a hybrid it has moved to the stem.
_RENAMED = {
    "train.accumulation": ("train.accumulate_steps",),
    "train.average": ("train.ema_decay",),
    "data.window": ("data.shuffle_window",),
    "data.erasing": ("data.random_erasing",),
    "data.erasing_area": ("data.random_erasing_area",),
    "data.erasing_aspect": ("data.random_erasing_aspect",),
    "data.erasing_fill": ("data.random_erasing_fill",),
    "data.colour_jitter": ("data.color_jitter",),
    "optimizer.decay": ("optimizer.weight_decay_mask",),
    "model.units": ("model.stem.stage_depths", "model.stage_depths"),
    "model.width": ("model.stem.width",),
    "model.group_norm_epsilon": ("model.stem.group_norm_epsilon",),
    "model.variance_epsilon": ("model.stem.variance_epsilon",),
    "model.deviation_epsilon": ("model.stem.deviation_epsilon",),
}
OLD_MODEL_FIELDS = {path.removeprefix("model.") for path in _RENAMED if path.startswith("model.")}
# Old -> new values of `--weights`.
RENAMED_WEIGHTS = {"average": "ema"}


def refuse_old_names(paths, known, where):
    """Raises `UserError` that lists all old names among `paths` with the new ones.

    Args:
        paths: dotted paths that were received.
        known: the paths that exist now, for the model of the experiment.
        where: file or flag that held the paths, for the message.
    """
    found = {
        old: new
        for old in paths
        if old not in known
        for new in _RENAMED.get(old, ())
        if new in known
    }
    if found:
        pairs = ", ".join(f"{old} -> {new}" for old, new in found.items())
        raise UserError(f"{where} has names of an earlier version. Rename them: {pairs}.")
