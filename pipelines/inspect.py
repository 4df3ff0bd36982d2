"""Shows what a model looks at, and what it has learned."""

import os
import sys

if __name__ == "inspect":
    # `python pipelines/NAME.py` puts this folder first on the path, and Python's own `inspect` is
    # meant. It takes this module's place in `sys.modules`, where the import looks last.
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    del sys.modules["inspect"]
    import inspect  # noqa: F401
else:
    from absl import flags

    from pipelines.cli import command, model_flags, request, shared_flags
    from pipelines.config.data import NAMING_FIELDS

    # The fields of an experiment that this command uses.
    FIELDS = (*NAMING_FIELDS, "data.eval_split")

DESCRIPTION = """Writes a page, PNG files and inspect.json about models of every family: filters,
similarity of positions, attention distance and entropy of each head, beside those of random
weights; and for each image the prediction, attention of each head, attention rollout, Grad-CAM,
component colors, occlusion, deletion and insertion curves, and nearest neighbors. What a family
does not have is left out and named.

Takes images and folders, or the data set of --set data.name; without them, samples that come with
packages. Repeat --model to put several models side by side.

example: python -m pipelines.inspect --model runs/pretrain-digits --output runs/inspect photo.jpg
"""

POSITIONAL = "IMAGE_OR_FOLDER ..."
SHARED_FLAGS = ("experiment", "workdir", "set")
LOGS_TO = "stdout"


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_multi_string(
        "model",
        [],
        f"{model_flags.MODEL_KINDS}; by default --workdir, else the model shipped with the "
        "package. Repeat it to compare models.",
        **own,
    )
    model_flags.define_weights(values)
    flags.DEFINE_string(
        "labels",
        None,
        "File with the names of the classes, as for predict; by default those that the model "
        "stores.",
        **own,
    )
    flags.DEFINE_string(
        "class",
        None,
        "Name or index of the class that Grad-CAM, occlusion and the curves explain; by default "
        "the most probable one of each image.",
        **own,
    )
    flags.DEFINE_integer("show", 20, "Show at most this many images.", lower_bound=1, **own)
    flags.DEFINE_bool(
        "occlusion",
        True,
        "Cover the cells of each image: occlusion, deletion and insertion. It takes most of the "
        "time.",
        **own,
    )
    model_flags.define_fused(values)
    shared_flags.define_output(values, "Directory of the files; by default runs/inspect.")


def main(values, arguments):
    from pipelines.errors import RunError
    from pipelines.inspection import images, run
    from pipelines.inspection.subject import open_subject
    from pipelines.stored_models import model_source

    output = values.output or os.path.join("runs", "inspect")
    run.check_output(output)
    paths, weights = model_flags.models_and_weights(values)
    sources = [model_source.find(path, weights, values.labels) for path in paths]
    reason = "an inspection reads images only"
    data = request.named_source(values, arguments, sources[0].workdir, FIELDS, "inspect", reason)
    errors = []
    if arguments:
        found, errors = images.from_paths(arguments)
    elif data is not None:
        found, errors = images.from_source(data)
    opening = model_flags.opening(values)
    subjects = [open_subject(source, opening) for source in sources]
    if not arguments and data is None:
        found = images.samples(subjects[0].classes.labels)
    options = run.Options(target=values["class"].value, most=values.show, occludes=values.occlusion)
    print(f"page: {run.run(subjects, found, output, options)}")
    if errors:
        total = len(errors) + len(found)
        raise RunError(f"{len(errors)} of {total} images are left out: {' '.join(errors[:5])}")


if __name__ == "__main__":
    command.run(
        main,
        DESCRIPTION,
        define,
        POSITIONAL,
        shared_flags=SHARED_FLAGS,
        fields=FIELDS,
        logs_to=LOGS_TO,
    )
