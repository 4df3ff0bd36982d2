"""The main numbers of an experiment in two lines, for the start of a run."""

from pipelines.errors import counted


def summary(experiment, images: int | None = None) -> list[str]:
    """Returns a line about model, data and length, and one about optimizer and regularization.

    Args:
        experiment: `Experiment`.
        images: number of training images, for the number of epochs; None leaves it out.
    """
    model, train = experiment.model, experiment.train
    height, width = model.image_size
    length = _length(train.steps, train.epochs)
    of, epochs = "in batches of", ""
    if train.epochs is None:
        of = "of"
        epochs = f" ({train.steps * train.batch_size / images:,.4g} epochs)" if images else ""
    weights = f", from {experiment.init_from}" if experiment.init_from else ""
    return [
        f"{model.name} at {height} x {width} on {experiment.data.name}: {length} "
        f"{of} {counted(train.batch_size, 'image')}{epochs}, {_task(experiment)}{weights}",
        ", ".join([*_optimizer(experiment), *_regularization(experiment)]),
    ]


def _task(experiment):
    if experiment.task == "masked_patches":
        return f"masked patch prediction of {experiment.masking.target}"
    return f"{experiment.train.loss} loss"


def _length(steps, epochs):
    return counted(steps, "step") if epochs is None else counted(epochs, "epoch")


def _optimizer(experiment):
    optimizer, schedule = experiment.optimizer, experiment.schedule
    yield f"{optimizer.name} with a rate of {optimizer.learning_rate:g}"
    yield f"warm-up of {_length(schedule.warmup_steps, schedule.warmup_epochs)}"
    at = f" at {' '.join(f'{part:g}' for part in schedule.decay_at)}" if schedule.decay_at else ""
    yield f"{schedule.decay} decay{at}" if schedule.decay != "constant" else "no decay"
    yield f"weight decay {optimizer.weight_decay:g}"
    if optimizer.clip_norm is not None:
        yield f"clipping at {optimizer.clip_norm:g}"


def _regularization(experiment):
    """Dropout, and the other settings that are on."""
    model, data, train = experiment.model.config(num_classes=1), experiment.data, experiment.train
    yield f"dropout {getattr(model, 'dropout', 0.0):g}"
    if stochastic_depth := getattr(model, "stochastic_depth", 0.0):
        yield f"stochastic depth {stochastic_depth:g}"
    if data.randaugment_layers:
        yield f"RandAugment {data.randaugment_layers} x {data.randaugment_magnitude:g}"
    for name, value in (
        ("MixUp", data.mixup),
        ("CutMix", data.cutmix),
        ("label smoothing", train.label_smoothing * experiment.reads_labels),
    ):
        if value:
            yield f"{name} {value:g}"
    if train.ema_decay is not None:
        yield f"average of the weights with {train.ema_decay:g}" + ", warmed up" * train.ema_warmup
