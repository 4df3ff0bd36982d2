"""Multiply-accumulates and bytes of models, counted in the graphs that TensorFlow traces."""

import math

import tensorflow as tf

import custom_ops

# Operations whose output uses the memory of their first input, and operations that overwrite an
# input of the same size if no other operation reads it later.
ALIASES = {"Reshape", "Identity", "IdentityN", "Squeeze", "ExpandDims", "StopGradient"}
IN_PLACE = {"BiasAdd", "AddV2", "Sub", "Mul", "Neg", "Relu", "Tanh", "Square", "Erfc", "Softmax"}


def reachable(outputs):
    """Names of the operations that compute `outputs`."""
    names, todo = set(), [tensor.op for tensor in outputs]
    while todo:
        operation = todo.pop()
        if operation.name not in names:
            names.add(operation.name)
            todo += [tensor.op for tensor in operation.inputs]
    return names


def owner(tensor):
    """The tensor that owns the memory of this one."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def size_of(tensor):
    assert tensor.shape.is_fully_defined(), tensor
    return math.prod(tensor.shape) * tensor.dtype.size


def varying(operations, images):
    """Names of the tensors that depend on the images or on random draws."""
    names = {images.name}
    for operation in operations:
        if "Random" in operation.type or any(t.name in names for t in operation.inputs):
            names |= {tensor.name for tensor in operation.outputs}
    return names


def traced(model, batch, step):
    """The graph of `step(images)`, with all functions inlined."""
    spec = tf.TensorSpec((batch, *model.config.image_size, 3), model.compute_dtype)
    graph = tf.function(step, autograph=False).get_concrete_function(spec).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert not {kind for kind in kinds if "Call" in kind or kind in ("While", "If", "Case")}
    return graph


def macs_of(operation):
    """Multiply-accumulates of one operation of a graph."""
    shapes = [tensor.shape.as_list() for tensor in operation.inputs]
    results = math.prod(operation.outputs[0].shape) if operation.outputs else 0
    if operation.type == "Conv2D":
        return results * math.prod(shapes[1][:3])
    if operation.type == "MatMul":
        return results * shapes[0][0 if operation.get_attr("transpose_a") else 1]
    if operation.type == "BatchMatMulV2":
        return results * shapes[0][-2 if operation.get_attr("adj_x") else -1]
    if operation.type == "Einsum":
        labels = operation.get_attr("equation").decode().split("->")[0].split(",")
        sides = {}
        for names, shape in zip(labels, shapes, strict=True):
            sides |= dict(zip(names, shape, strict=True))
        return math.prod(sides.values())
    return 0


def forward_macs(model):
    """Multiply-accumulates of one image."""
    with custom_ops.implementation("reference"):
        graph = traced(model, 1, model)
    used = reachable(graph.outputs)
    return sum(macs_of(operation) for operation in graph.get_operations() if operation.name in used)


def kept_bytes(model, batch):
    """Bytes of the forward pass that the backward pass reads; each tensor counts once."""
    forward = set()

    def step(images):
        with tf.GradientTape() as tape:
            # The gradient of sin reads the output of the model, through a cosine.
            loss = tf.reduce_sum(tf.sin(model(images, training=True)))
        forward.update(o.name for o in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    graph = traced(model, batch, step)
    used, changing = reachable(graph.outputs), varying(graph.get_operations(), graph.inputs[0])
    kept = {}
    for operation in graph.get_operations():
        # Shape operations read no values.
        if operation.name in used - forward and operation.type not in ("Shape", "ShapeN"):
            for tensor in map(owner, operation.inputs):
                if tensor.op.name in forward and tensor.name in changing:
                    kept[tensor.name] = size_of(tensor)
    return sum(kept.values())


def live_bytes(model, batch):
    """Peak bytes if the operations run in order and tensors are freed after their last use."""
    graph = traced(model, batch, lambda images: model(images, training=False))
    used, changing = reachable(graph.outputs), varying(graph.get_operations(), graph.inputs[0])
    operations = [o for o in graph.get_operations() if o.name in used and o.type not in ALIASES]
    last = {owner(t).name: at for at, o in enumerate(operations) for t in o.inputs}
    last |= {owner(tensor).name: len(operations) for tensor in graph.outputs}
    live, most = {}, 0
    for at, operation in enumerate(operations):
        new = {t.name: size_of(t) for t in operation.outputs if t.name in changing}
        dying = [name for name in {owner(t).name for t in operation.inputs} if last[name] == at]
        if operation.type in IN_PLACE:
            over = [name for name in dying if name in live and live[name] in new.values()]
            for name in over[:1]:
                del live[name]
        live |= new
        most = max(most, sum(live.values()))
        for name in [*dying, *(name for name in new if name not in last)]:
            live.pop(name, None)
    return most


def training_macs(model):
    """Multiply-accumulates of a training step of one image, without convolutions."""
    variables = [variable.value for variable in model.trainable_variables]

    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(model(images, training=True)))
        return tape.gradient(loss, variables)

    with custom_ops.implementation("reference"):
        graph = traced(model, 1, step)
    used = reachable(graph.outputs)
    products = [o for o in graph.get_operations() if o.name in used and "MatMul" in o.type]
    return sum(map(macs_of, products))
