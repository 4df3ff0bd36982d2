"""Variables of a training step, and updates of them, on all replicas."""

import tensorflow as tf


def replicated_variable(value, name):
    """Returns a variable that is not trained; create it inside `strategy.scope()`."""
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


def update_on_all_replicas(update, condition, *values):
    """Calls `update(extended, *values)` once for all replicas if `condition`, without a collective.

    Call it in replica context, inside `strategy.run`. One branch holds the updates of all
    variables: a `tf.where` for each would read and write all weights and slots again, which takes
    2 % of a step (ViT-Ti/16, batch 8, 2 CPU cores, 2026-11-20).

    Args:
        update: function of the `tf.distribute.StrategyExtended`, whose `update` changes a variable
            on its devices, and of `values`; returns nothing.
        condition: scalar bool, equal on all replicas.
        values: nested lists and tuples of tensors, one per replica.
    """

    def in_cross_replica_context(strategy, condition, *values):
        condition = tf.convert_to_tensor(strategy.experimental_local_results(condition)[0])
        tf.cond(condition, lambda: update(strategy.extended, *values), lambda: None)

    context = tf.distribute.get_replica_context()
    context.merge_call(in_cross_replica_context, args=(condition, *values))


def assign_on_all_replicas(assignments, condition=None):
    """Assigns values to variables; call it like `update_on_all_replicas`.

    Args:
        assignments: list of `(tf.Variable, tensor)`; each tensor is equal on all replicas.
        condition: scalar bool, equal on all replicas; None assigns always.
    """
    variables, values = zip(*assignments, strict=True)

    def assign_all(extended, values):
        for variable, value in zip(variables, values, strict=True):
            extended.update(variable, _assign, args=(value,), group=False)

    if condition is not None:
        update_on_all_replicas(assign_all, condition, values)
        return
    tf.distribute.get_replica_context().merge_call(
        lambda strategy, values: assign_all(strategy.extended, values), args=(values,)
    )


def _assign(variable, value):
    variable.assign(value)
