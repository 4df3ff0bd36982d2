"""The contents of the graphs of the training loop and the evaluation step.

On a TPU the host drives the loop, and one program of the device is a whole step. So the host must
do nothing in a step but hand over the batch: no Python, no strings, no clock, no variable.
"""

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.evaluation.features import FeatureExtractor
from pipelines.tasks.task import task_of
from pipelines.training import train, train_step
from pipelines.training.train import build_trainer
from tests.pipelines.families import axial_resnet
from tests.pipelines.tiny import tiny_experiment, two_replicas
from tests.pipelines.training.faults import train_data

PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
TRAIN = "data.train_split=train"
# Their results have sizes that depend on values.
DYNAMIC = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where", "ListDiff"}


def scaled(*assignments):
    """A ViT with a loss scale."""
    own = ("model.layers=1", "model.dtype=mixed_float16", "train.accumulate_steps=2")
    return tiny_experiment(*own, *assignments)


def nodes_of(function, *args):
    """All nodes of the graph of a `tf.function`, and of the functions that it calls."""
    graph = tf.function(function).get_concrete_function(*args).graph.as_graph_def()
    return [*graph.node, *(node for x in graph.library.function for node in x.node_def)]


def loop_nodes(trainer):
    return nodes_of(trainer.create_train_loop_fn(), iter(trainer.train_dataset), tf.constant(2))


def of_variables(nodes):
    return {node.op for node in nodes if "Variable" in node.op}


def of_strings(nodes):
    """The ops of the nodes that take or return strings."""
    return {node.op for node in nodes if tf.string.as_datatype_enum in types_of(node)}


def types_of(node):
    """Types of a node's attributes, and of the inputs and outputs whose type its op fixes."""
    definition = op_def_registry.get(node.op)
    types = {argument.type for argument in [*definition.input_arg, *definition.output_arg]}
    return types.union(*([x.type, *x.list.type] for x in node.attr.values()))


def assert_device_only(nodes):
    found = {node.op for node in nodes}
    assert "MatMul" in found or "Conv2D" in found, "not the graph of a step"
    assert not found & (PYTHON | DYNAMIC)
    assert not of_strings(nodes)


def make_trainer(experiment):
    data = train_data(experiment)
    config = experiment.model_config(data.source.num_classes)
    trainer = build_trainer(experiment, task_of(experiment, config), two_replicas())
    trainer.open_dataset(data.dataset)
    return trainer


def test_all_ops_of_strings_are_found():
    """Also if the op alone fixes the type, and if its newest node has another type."""

    def of_constants(x):
        return x + tf.cast(tf.size(tf.identity("text")), tf.float32) + 2.0

    def of_joined(x):
        return x + tf.cast(tf.size(tf.strings.join(["a", "b"])), tf.float32)

    def of_printed(x):
        tf.print(x)
        return x

    x = tf.constant(1.0)
    assert of_strings(nodes_of(lambda x: x + 2.0, x)) == set()
    assert {"Const", "Identity"} <= of_strings(nodes_of(of_constants, x))
    assert "StringJoin" in of_strings(nodes_of(of_joined, x))
    assert {"StringFormat", "PrintV2"} <= of_strings(nodes_of(of_printed, x))
    assert "AsString" in of_strings(nodes_of(tf.strings.as_string, x))
    path = tf.TensorSpec([], tf.string)
    assert {"ReadFile", "DecodeJpeg"} <= of_strings(
        nodes_of(lambda path: tf.io.decode_jpeg(tf.io.read_file(path)), path)
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_training_step_has_no_python_and_no_strings(deterministic):
    """Without op determinism with a loss scale, with it with statistics of the batch."""
    if deterministic:
        tf.config.experimental.enable_op_determinism()  # The fixture `fresh_state` ends it.
    make = axial_resnet if deterministic else scaled
    own = ("train.ema_decay=0.9", "data.train_split=train", "data.bad_images=skip")
    trainer = make_trainer(make(*own))
    nodes = loop_nodes(trainer)
    assert_device_only(nodes)
    assert trainer.bad_rows and "TensorScatterUpdate" in {node.op for node in nodes}
    assert {"AssignVariableOp", "AssignAddVariableOp"} <= of_variables(nodes)


@pytest.mark.heavy("training")
def test_a_step_on_slices_has_no_python_and_no_strings():
    own = ("model.layers=1", "train.shard_optimizer=true", "train.ema_decay=0.9", TRAIN)
    trainer = make_trainer(tiny_experiment(*own))
    assert trainer.slices
    assert_device_only(loop_nodes(trainer))


@pytest.mark.parametrize(
    "deterministic", [False, pytest.param(True, marks=pytest.mark.heavy("training"))]
)
@pytest.mark.parametrize("device", ["CPU", "TPU"])
def test_the_host_changes_no_variable_of_the_device(deterministic, device, monkeypatch):
    """Without `replica_step`, the graph is what the host does in a step."""
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    for module in (train, train_step):
        monkeypatch.setattr(module, "is_tpu", lambda strategy: device == "TPU")
    trainer = make_trainer(scaled("train.non_finite=skip"))
    monkeypatch.setattr(trainer, "replica_step", lambda batch: None)
    nodes = loop_nodes(trainer)
    expected = {"ReadVariableOp"} if device == "CPU" else set()  # `halted`, to end the loop.
    measures = device == "CPU" and not deterministic
    assert sum(node.op == "Timestamp" for node in nodes) == 2 * measures
    assert of_variables(nodes) == expected | ({"AssignAddVariableOp"} if measures else set())


def evaluation_nodes(experiment, strategy, dtype, of_features=False):
    """The nodes of a step of an evaluation, or of the features of a model."""
    data = train_data(experiment)
    task = task_of(experiment, experiment.model_config(data.source.num_classes))
    with strategy.scope():
        model = task.create_model(dtype)
    data = EvaluationData(source=data.source, preprocessing=data.preprocessing, batch_size=16)
    if of_features:
        extractor = FeatureExtractor(task.features(model), strategy, data)
        return nodes_of(extractor._distributed_step, iter(extractor._dataset))
    evaluator = Evaluator(model, strategy, data, task)
    return nodes_of(evaluator.eval_step, iter(evaluator.eval_dataset))


@pytest.mark.parametrize("kind", ["classes", "masked patches", "features"])
def test_an_evaluation_step_only_measures(kind):
    masks = kind == "masked patches"
    own = ("model.layers=1", "task=masked_patches")
    experiment = tiny_experiment(*own, TRAIN) if masks else axial_resnet(TRAIN)
    dtype = "float32" if masks else "mixed_bfloat16"
    nodes = evaluation_nodes(experiment, two_replicas(), dtype, of_features=kind == "features")
    assert_device_only(nodes)
    assert of_variables(nodes) == {"ReadVariableOp"}
