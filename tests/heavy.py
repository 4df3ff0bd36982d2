"""Groups of heavy tests: `make test` runs them only after a change of what they cover.

A test marked `heavy("native")` is in the group "native", all tests in a folder of `ROOMS` in the
folder's group. `make test-all` runs all groups, after the other tests, `make test` and `make check`
those that a change since the merge base with main switches on.

CI has little time: no heavy test begins after the time in `VIT_HEAVY_UNTIL`, seconds since 1970,
and pytest's summary counts those that are left out.
"""

import argparse
import functools
import os
import sys
import time

from tests import changed
from tests.architecture import ROOT
from tests.source_text import imports


def _room(folder, *more):
    """A function that returns the paths of a room; all rooms together take a second."""
    return functools.partial(_paths, folder, more)


@functools.cache
def _paths(folder, more):
    """A room's folder, its tests, the modules that it imports directly, and others."""
    found = {f"{folder}/": None, f"tests/{folder}/": None}
    for file in sorted((ROOT / folder).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        names = [name for name, _ in imports(file.read_text(), module)]
        stems = [name.replace(".", "/") for name in names]
        paths = [f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py")]
        found |= dict.fromkeys(path for path in paths if (ROOT / path).is_file())
    return (*found, *more)


# Group -> starts of the paths that switch it on: of what the tests cover most, and of the tests. Or
# a function that returns them.
# tests/changed.py finds the changed files.
GROUPS = {
    # C++ programs: plain, under sanitizers, fuzzed.
    "native": ("custom_ops/", "tests/cc/", "tests/custom_ops/"),
    # Compilers for GPUs and for ARM, of which `make test` installs none: only in `make test-all`.
    "compilers": (),
    # Bazel, installations, set-up.
    "builds": (
        *("custom_ops/", "third_party/", ".ci/", "setup.py", "pyproject.toml", "requirements"),
        *("BUILD", "WORKSPACE", "MODULE.bazel", ".bazelrc"),
        *("pipelines/doctor.py", "pipelines/cli/doctor/examination", "tests/checkout.py"),
        *("tests/custom_ops/", "tests/pipelines/cli/doctor/test_examination"),
    ),
    # The blocks of the documentation.
    "docs": (
        *("docs/", "README.md", "tests/documents.py", "tests/test_docs.py"),
        "pipelines/cli/",
    ),
    # The demo and its report.
    "demo": (
        *("pipelines/demo.py", "pipelines/research/demo/", "pipelines/reports/"),
        "tests/pipelines/research/demo/",
    ),
    # Trainings beyond one of each kind: more kills, families, recipes and replicas.
    "training": (
        *(
            "pipelines/training/",
            "pipelines/runs/",
            "pipelines/tasks/",
            "pipelines/distribution/",
            "pipelines/launch.py",
            "vit_tf/models/",
        ),
        *("tests/pipelines/training/", "tests/pipelines/distribution/", "tests/tpu/"),
        *("tests/pipelines/test_families.py", "tests/pipelines/test_switches.py"),
        "tests/pipelines/test_training_on_gpu.py",
    ),
    # A Ray cluster; skipped where it is not installed.
    "ray": ("pipelines/distribution/engine/", "tests/ray/", "tests/nodes"),
    # All tests of these rooms, without a mark of their own; "research" is behind the fence.
    "research": _room(
        "pipelines/research",
        *(f"pipelines/{name}.py" for name in ("demo", "paper", "plan", "sweep", "verify_weights")),
        *("tests/pipelines/test_plan.py", "docs/results/"),
    ),
    # And the memory of the inspection of a large model.
    "inspection": _room(
        *("pipelines/inspection", "pipelines/inspect.py", "vit_tf/analysis/"),
        *("tests/vit_tf/analysis/", "tests/vit_tf/programs/"),
    ),
    "optimization": _room("pipelines/training/optimization"),
    "builtin": _room("pipelines/data/builtin"),
    "doctor": _room(
        *("pipelines/cli/doctor", "pipelines/doctor.py"),
        *("setup.py", "pyproject.toml", "requirements"),
    ),
    "deduplication": _room("pipelines/deduplication", "pipelines/dedup.py"),
    "predictions": _room(
        *("pipelines/predictions", "pipelines/predict.py"),
        "tests/pipelines/serving/test_prediction",
    ),
    "benchmarks": _room("pipelines/evaluation/benchmarks"),
    "http": _room("pipelines/serving/http", "pipelines/serve.py"),
    "single_file": _room(
        *("pipelines/serving/single_file", "pipelines/export.py"),
        "tests/pipelines/serving/test_single_file.py",
    ),
    # A SLURM cluster: `make test-slurm`, which `make test-all` runs if a change switches it on.
    "slurm": ("pipelines/distribution/", "tests/slurm/", "tests/nodes", "docs/cluster.md"),
    # Exports, conversions and damaged models beyond one of each kind.
    "serving": _room(
        *("pipelines/serving", "pipelines/stored_models/", "tests/pipelines/stored_models/"),
        *("vit_tf/checkpoints/", "vit_tf/preprocessing.py"),
    ),
    # Input: all kinds of sources, of labels and of transforms, and order and reading in detail.
    "data": _room(
        *("pipelines/data", "pipelines/config/data.py", "pipelines/config/augmentation.py"),
        *("vit_tf/images/", "vit_tf/preprocessing.py", "tests/pipelines/test_hostile_images.py"),
    ),
    # Files of weights beyond a round trip of each layout: damaged ones, settings, other families.
    "checkpoints": _room(
        *("vit_tf/checkpoints", "vit_tf/weights.py", "vit_tf/pretrained/"),
        "tests/vit_tf/pretrained/",
    ),
    # Models beyond ViTs and BiT and their layers: what Keras does with them, dropout, packing,
    # recomputation, related work, analysis, and the calculated costs of every kind of model.
    "models": (
        *("custom_ops/", "requirements", "pyproject.toml", "tests/vit_tf/"),
        *(f"vit_tf/{x}/" for x in ("analysis", "config", "images", "layers", "models")),
        *(f"vit_tf/{x}.py" for x in ("cost", "families", "features", "keras_file")),
        *(f"vit_tf/{x}.py" for x in ("create", "packing", "preprocessing")),
    ),
    # A trained backbone beside ONNX Runtime: files, exports, inspection, uses. Downloads 90 MB.
    "trained": (
        *("tests/peers/conftest", "tests/peers/test_trained", "tests/peers/trained"),
        *("vit_tf/checkpoints/safetensors/", "vit_tf/models/image_features.py"),
    ),
    # What TensorBoard shows of every kind of model.
    "reports": _room("pipelines/reports", "vit_tf/analysis/"),
    # Evaluation beyond `evaluate` itself: reports, few-shot accuracy, probes, other data sets.
    "evaluation": _room("pipelines/evaluation", "pipelines/evaluate.py", "pipelines/fewshot.py"),
    # Commands on URLs; one run there is always trained.
    "urls": _room("pipelines/runs", "vit_tf/files/"),
}
# Start of the path of tests -> their group.
ROOMS = {
    "tests/pipelines/research/": "research",
    "tests/pipelines/test_plan.py": "research",
    "tests/pipelines/inspection/": "inspection",
    "tests/pipelines/training/optimization/": "optimization",
    "tests/pipelines/data/builtin/": "builtin",
    "tests/pipelines/cli/doctor/": "doctor",
    "tests/tpu/": "training",
    "tests/pipelines/deduplication/": "deduplication",
    "tests/pipelines/predictions/": "predictions",
    "tests/pipelines/serving/test_prediction": "predictions",
    "tests/pipelines/evaluation/benchmarks/": "benchmarks",
    "tests/pipelines/serving/http/": "http",
    "tests/pipelines/serving/test_single_file.py": "single_file",
    "tests/pipelines/serving/test_service.py": "serving",
    "tests/pipelines/serving/test_stored_weights.py": "serving",
    "tests/pipelines/reports/test_model_pictures.py": "reports",
    "tests/custom_ops/test_ops_builds": "builds",
    **{
        f"tests/vit_tf/analysis/test_{name}.py": "models"
        for name in (
            *("attention_maps", "attention_statistics", "final_maps", "inspection", "masking"),
            *("relative_difference", "vit_cost"),
        )
    },
    **{
        f"tests/vit_tf/models/test_{name}.py": "models"
        for name in (
            *("axial", "axial_resnet", "comparisons", "image_model", "inputs", "keras_model"),
            *("packed", "position_switches", "recompute"),
        )
    },
    **{
        f"tests/vit_tf/layers/{name}": "models"
        for name in (
            *("related_work/", "test_axial_resnet", "test_normalization", "test_dropout"),
            *("test_encoder_dropout", "test_masking"),
        )
    },
    **{
        f"tests/pipelines/evaluation/test_{name}": "evaluation"
        for name in ("features", "fewshot_command", "probes", "real_objectnet", "report", "vtab")
    },
    **{
        f"tests/pipelines/data/{name}": "data"
        for name in (
            *("sources/", "labels/", "protocols/", "transforms/test_randaugment"),
            *("test_bad_images", "test_file_scan", "test_image_dtype", "test_windows"),
            *("test_sharding", "test_throughput"),
        )
    },
    **{
        f"tests/vit_tf/{name}": "checkpoints"
        for name in (
            *("checkpoints/test_published_families", "checkpoints/test_safetensors_"),
            *("pretrained/test_download", "pretrained/test_records"),
        )
    },
}
CHOICES = ("all", "changed", "none", "only")


def choice(text):
    """One of `CHOICES`, or names of groups with commas between them.

    Raises:
        argparse.ArgumentTypeError: if it is neither.
    """
    if text not in CHOICES and (unknown := set(text.split(",")) - GROUPS.keys()):
        expected = f"Expected {CHOICES} or some of {[*GROUPS]}"
        raise argparse.ArgumentTypeError(f"unknown groups: {unknown}. {expected}")
    return text


def switched_on(choice):
    """The groups that a choice runs; "changed" is "none" outside a git checkout."""
    if choice == "changed":
        return groups_of(changed.changed_files(changed.merge_base()) or [])
    if choice == "none":
        return []
    return list(GROUPS) if choice in CHOICES else choice.split(",")


def groups_of(paths):
    """The groups that changed files switch on."""
    found = {group: starts() if callable(starts) else starts for group, starts in GROUPS.items()}
    return [group for group, starts in found.items() if any(p.startswith(starts) for p in paths)]


def is_left_out(path, groups):
    """Whether all tests of a file or folder are in rooms of other groups: it is not imported.

    Args:
        path: below the checkout; that of a folder ends in "/".
        groups: the groups that run.
    """
    return any(path.startswith(start) and group not in groups for start, group in ROOMS.items())


def groups_of_test(item):
    """The groups of a test; a test without any is not heavy."""
    own = {group for mark in item.iter_markers("heavy") for group in mark.args}
    return own | {group for start, group in ROOMS.items() if item.nodeid.startswith(start)}


def is_too_late(item):
    """Whether a test is heavy and the time for such tests is over."""
    until = os.environ.get("VIT_HEAVY_UNTIL")
    return bool(until) and time.time() > float(until) and bool(groups_of_test(item))


def split(items, groups, only=False):
    """Separates the tests that run from the tests of other groups.

    Args:
        items: tests collected by pytest.
        groups: the groups that run; a test of several groups needs all of them.
        only: whether tests without a group are left out.

    Returns:
        Two lists: the tests that run, and the tests that are left out.

    Raises:
        ValueError: if a test is in a group that does not exist.
    """
    kept, left_out = [], []
    for item in items:
        own = groups_of_test(item)
        if unknown := own - GROUPS.keys():
            raise ValueError(f"{item.nodeid} is in a group that tests/heavy.py lacks: {unknown}")
        runs = own <= set(groups) and (own or not only)
        (kept if runs else left_out).append(item)
    return kept, left_out


if __name__ == "__main__":
    # `python -m tests.heavy GROUP` prints whether a change switches the group on.
    print("on" if choice(sys.argv[1]) in switched_on("changed") else "off")
