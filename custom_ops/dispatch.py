"""Where calls run in the compiled library: where its kernels exist, and where that is faster.

The kernels are for CPUs. Under `jit_compile=True`, on TPUs and, unless the surrounding `tf.device`
names a CPU, on machines with a GPU, "auto" takes the reference, which runs everywhere.
"""

from custom_ops import loader


def load():
    """Loads the compiled library with its gradients, as the first call of an op does.

    Call it before `tf.saved_model.load` of a model that contains the compiled ops.

    Returns:
        Module with a function for each op, such as `vit_attention`.

    Raises:
        ValueError: if there is no library that can be used.
    """
    ops = loader.load()
    # Registers on import. Not before the library is there: TensorFlow is imported lazily.
    from custom_ops import gradients

    del gradients
    return ops


def ops_for(implementation):
    """Returns the module of compiled ops if a call that is made here runs in them, else None.

    Args:
        implementation: the `implementation=` argument of the call.

    Raises:
        ValueError: as `library.resolve`, and if the compiled library is asked for where it has no
            kernels.
    """
    if loader.resolve(implementation) == "reference":
        return None
    obstacle = _obstacle()
    if obstacle is None and _on_cpu():
        return load()
    choice, source = loader.requested(implementation)
    if choice != "compiled":
        return None
    if obstacle:
        raise ValueError(
            f"{source} asks for the compiled library, which has no kernels for {obstacle}. Use "
            "'auto' or 'reference'."
        )
    return load()


def supports_jit(implementation=None):
    """Returns whether calls work under `jit_compile=True`, which Keras asks its layers.

    They do unless the compiled library is demanded, since anything else takes the reference there.
    """
    return loader.requested(implementation)[0] != "compiled"


def _obstacle():
    """Returns what makes the kernels unusable here, None if nothing does."""
    import tensorflow as tf

    tpu = (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy)
    if isinstance(tf.distribute.get_strategy(), tpu):
        return "TPUs"
    if not tf.executing_eagerly() and _traced_for_xla():
        return "XLA (jit_compile=True)"
    return None


def _traced_for_xla():
    """Whether the function that is being traced is for XLA.

    TensorFlow has no public question for this, but it asks itself: it marks conditionals to be
    replaced by switches, except where XLA, which wants them whole, will see them.
    """
    import tensorflow as tf

    # In a function of its own, so that nothing is added to the one being traced.
    probe = tf.function(lambda: tf.cond(tf.constant(True), lambda: 1, lambda: 2), autograph=False)
    operations = probe.get_concrete_function().graph.get_operations()
    conditionals = [op for op in operations if op.type in ("If", "StatelessIf")]
    return not all("_lower_using_switch_merge" in op.node_def.attr for op in conditionals)


def _on_cpu():
    """Whether TensorFlow would run an op that has kernels for every device on a CPU here."""
    import tensorflow as tf

    if not tf.config.list_logical_devices("GPU"):
        return True
    # In a graph this is the surrounding `tf.device`, which may be none.
    return tf.DeviceSpec.from_string(tf.zeros([]).device).device_type == "CPU"
