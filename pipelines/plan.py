"""Computes what training takes of chips, without running anything on them."""

import logging
import typing

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.config import Assignments
from pipelines.config.names import Passes
from pipelines.errors import Interrupted, UserError, counted
from pipelines.research.planning.assumptions import Assumptions

DESCRIPTION = """Computes the memory, the largest batch, the communication, the time and the cost of
a run on a number of chips; nothing runs on them, and the data need not be on this machine.

Several numbers of --chips print the time of a step for each of them. --paper prints the costs that
the paper states beside those of the formula. docs/scaling.md describes the models behind the
numbers and what they assume.

--measure runs models on this machine instead, each in many processes, one after the other: images
per second, and the largest batch that fits into the memory (the paper's figure 12).

example: python -m pipelines.plan --experiment jft_vit_l16 --chip v4 --chips 8,64,512
example: python -m pipelines.plan --measure --models ViT-B/32,BiT-R50x1 --sizes 64,128 --memory_gb 4
"""

SHARED_FLAGS = ("experiment", "set")

_log = logging.getLogger("pipelines.plan")

_ASSUMED = {
    "utilization": "Part of the chips' peak that is reached.",
    "link_utilization": "Part of the rates of links and network that is reached.",
    "usable_memory": "Part of the memory that may be filled.",
    "message_us": "Latency of a message between chips, in microseconds.",
    "storage_gb_per_s": "Rate at which a checkpoint is written, in 1e9 bytes per second.",
    "input_rate": "Images per second that each host delivers; by default as many as are needed.",
}
_RUN_FLAGS = (
    *("experiment", "config", "set", "chip", "chips", "price", "images", "classes", "throughput"),
    *_ASSUMED,
)
_MEASURE_FLAGS = ("models", "sizes", "passes", "memory_gb", "most_images", "pause", "output")
# The fields that change what --measure measures.
_MEASURED_FIELDS = (
    *("model.dtype", "model.recompute", "model.layers"),
    *("optimizer.name", "optimizer.momentum_dtype", "optimizer.clip_norm"),
)


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_string(
        "chip",
        "v3",
        "TPU v3, v4, v5e, v5p or v6e, GPU v100, a100, h100 or h200, or a JSON file with a chip.",
        **own,
    )
    flags.DEFINE_string("chips", "8", "Number of chips, or several with commas.", **own)
    flags.DEFINE_float("price", None, "Price of one chip for an hour.", **own)
    flags.DEFINE_integer(
        "images", None, "Number of training images, if they are elsewhere.", lower_bound=1, **own
    )
    flags.DEFINE_integer(
        "classes", None, "Number of classes, if the data are elsewhere.", lower_bound=1, **own
    )
    for name, text in _ASSUMED.items():
        flags.DEFINE_float(name, getattr(Assumptions, name), text, **own)
    flags.DEFINE_float(
        "throughput",
        None,
        "Measure --input_rate on this machine and its data, for this many seconds.",
        **own,
    )
    flags.DEFINE_bool("paper", False, "Print the paper's costs instead.", **own)
    _define_measure(values)
    shared_flags.define_json(values)


def _define_measure(values):
    own = {"flag_values": values}
    flags.DEFINE_bool("measure", False, "Measure models on this machine instead.", **own)
    flags.DEFINE_list(
        "models",
        None,
        "With --measure: names of models; by default those of table 1, and BiT.",
        **own,
    )
    flags.DEFINE_string(
        "sizes", None, "With --measure: image sizes; by default 64,128,224,384,512.", **own
    )
    flags.DEFINE_enum(
        "passes",
        "inference",
        typing.get_args(Passes),
        "With --measure: the forward pass, as figure 12, or a training step.",
        **own,
    )
    flags.DEFINE_float(
        "memory_gb",
        None,
        "With --measure: memory that a model and its computation may take, in 1e9 bytes; by "
        "default that of the GPU.",
        **own,
    )
    flags.DEFINE_integer(
        "most_images", 4096, "With --measure: the largest batch to try.", lower_bound=1, **own
    )
    flags.DEFINE_float(
        "pause", 1.0, "With --measure: seconds before each timing.", lower_bound=0.0, **own
    )
    shared_flags.define_output(
        values, "With --measure: folder for the numbers and charts (default: runs/plan-measure)."
    )


def main(values, arguments):
    del arguments
    if values.measure:
        others = [name for name in (*_RUN_FLAGS, "paper") if name != "set"]
        shared_flags.refuse(values, "measure", others, "it plans no run")
        result, text = _measure(values)
    elif values.paper:
        shared_flags.refuse(values, "paper", _RUN_FLAGS + _MEASURE_FLAGS, "it plans no run")
        from pipelines.research.planning.paper_costs import paper_costs
        from pipelines.research.planning.plan_report import paper_text

        result, text = paper_costs(), paper_text
    else:
        shared_flags.require(values, "measure", _MEASURE_FLAGS)
        result, text = _plan(values)
    shared_flags.print_result(values, result, text)


def _measure(values):
    """The record of a search on this machine, and the function that formats it."""
    if values.memory_gb is not None and not 0 < values.memory_gb < float("inf"):
        raise UserError(f"--memory_gb={values.memory_gb:g} is not a size. Expected above 0.")
    sizes = values.sizes and _numbers("sizes", values.sizes, "64,128")
    reason = "--measure times one batch of each model"
    experiment = request.experiment(values, effective=_MEASURED_FIELDS, reason=reason)
    from pipelines.reports.charts import MOST_LINES
    from pipelines.research.planning import measured_report, measuring

    models, output = values.models or measuring.MODELS, values.output or "runs/plan-measure"
    if len(models) > MOST_LINES:
        raise UserError(
            f"--models names {len(models)} models. Name at most {MOST_LINES}: a chart has no more "
            "lines."
        )
    settings = measuring.Search(
        assignments=tuple(values.set),
        passes=values.passes,
        dtype=experiment.model.dtype,
        memory_gb=values.memory_gb,
        most_images=values.most_images,
        pause=values.pause,
        **measuring.this_device(values.memory_gb),
    )
    if known := measured_report.known_rows(output, settings):
        _log.info(f"{output} has {counted(len(known), 'row')} of this search, which are kept")
    try:
        record = measuring.search_all(
            models,
            sizes or measuring.SIZES,
            settings,
            lambda record: measured_report.write_measured(record, output),
            known,
        )
    except KeyboardInterrupt:
        raise Interrupted("Interrupted. Start the same command again to go on.") from None
    _log.info(f"wrote {output}")
    return record, measured_report.measured_text


def _plan(values):
    """The record of a plan, or the records of several, and the function that formats them."""
    from pipelines.research.planning import plan_report
    from pipelines.research.planning.chips import chip_table, find_chip
    from pipelines.research.planning.planning import plan, with_fewest

    chips, chip = _numbers("chips", values.chips, "8,64"), find_chip(values.chip)
    if values.price is not None and not 0 <= values.price < float("inf"):
        raise UserError(f"--price={values.price:g} is not a price. Expected at least 0.")
    if values.throughput is not None and values.input_rate is not None:
        raise UserError("--throughput measures --input_rate. Leave one of them out.")
    assumed = {name: values[name].value for name in _ASSUMED}
    Assumptions(**assumed)  # Refuses wrong values before data are opened.
    experiment, config, measured = _prepare(values)
    assumptions = Assumptions(**assumed | measured)
    several, fewest = len(chips) > 1, _may_have_fewer_micro_batches(values)
    if several:
        begin = with_fewest(experiment) if fewest else experiment
        plans = [plan(begin, config, chip, x, assumptions, True) for x in chips]
    else:
        where = config.num_classes, chip, chips[0], assumptions
        plans = [_plan_that_fits(experiment, *where, fewest)]
    others = [] if chip in chip_table().values() else [chip]
    records = [plan_report.plan_record(made, values.price, others) for made in plans]
    if several:
        return records, plan_report.scaling_text
    return records[0], plan_report.plan_text


def _may_have_fewer_micro_batches(values):
    """Whether `train.accumulate_steps` is that of a recipe: fewer change no result."""
    return values.config is None and not Assignments.parse(values.set).given(
        "train.accumulate_steps"
    )


def _plan_that_fits(experiment, classes, chip, chips, assumptions, fewest):
    """The plan for one number of chips, as `paper` makes it; says which settings it chose."""
    from pipelines.research.planning.planning import plan_that_fits

    made, changed = plan_that_fits(experiment, classes, chip, chips, assumptions, fewest)
    if changed:
        fewer = made.experiment.train.accumulate_steps < experiment.train.accumulate_steps
        why = "the run does not fit into the memory as it is"
        if fewer and len(changed) == 1:
            why = "the run fits with fewer micro-batches"
        _log.info(f"{why}: planned with " + " ".join(f"--set {setting}" for setting in changed))
    return made


def _numbers(name, text, example):
    """The numbers of a flag, each once, in their order."""
    try:
        numbers = list(dict.fromkeys(map(int, text.split(","))))
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--{name}={text} is not readable. Expected whole numbers from 1 on, with commas "
            f"between them, such as {example}."
        ) from None
    return numbers


def _prepare(values):
    """The experiment in steps, the configuration of its model, and a measured input rate, if any.

    As for a dry run, a model whose number of classes is not known has no head.
    """
    from pipelines.config.epochs import with_steps
    from pipelines.data.sources.subset import open_train_source
    from pipelines.errors import MissingDataError
    from pipelines.research.planning.planning import usual_classes

    experiment, source = request.experiment(values), None
    images, classes = values.images, values.classes
    try:
        source = open_train_source(experiment.data)
    except MissingDataError as error:
        if values.throughput is not None:
            raise
        if images is None and experiment.train.epochs is not None:
            raise UserError(
                f"train.epochs={experiment.train.epochs:g} needs the number of images, and the "
                f"data are not here. Set --images, or train.steps. {error}"
            ) from None
        if classes is None and experiment.reads_labels:
            classes = usual_classes(experiment.data)
            head = f"{classes:,} classes" if classes else "no head"
            _log.info(f"the data are not here: the model is planned with {head}; see --classes")
    else:
        images, classes = images or source.num_examples, classes or source.num_classes
    if images is not None:
        experiment, notes = with_steps(experiment, images)
        for note in notes:
            _log.info(note)
    config = experiment.model_config(classes or 0)
    return experiment, config, _measured(values, experiment, source)


def _measured(values, experiment, source):
    """The images per second that this machine delivers, as an assumption, with `--throughput`."""
    if values.throughput is None:
        return {}
    from pipelines.data import throughput

    if not 0 < values.throughput < float("inf"):
        raise UserError(f"--throughput={values.throughput:g} is not a positive number.")
    measured = throughput.measure(source, experiment, values.throughput / 2)
    _log.info(f"this machine delivers {measured.decoded:,.0f} images/s of {source}")
    return {"input_rate": measured.decoded}


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS)
