"""Optimizers and schedules of the rate, with the equations of the paper and its code.

The optimizers of Keras differ (learning rate inside the velocity, epsilon added before the bias
correction, clipping before the all-reduce). The published models were trained with the equations
here. Gradients are summed over replicas first, then clipped, then applied.
"""

import math

import tensorflow as tf

import custom_ops
from pipelines.training.optimization.freezing import freeze
from pipelines.training.optimization.replica_variables import (
    assign_on_all_replicas,
    update_on_all_replicas,
)

LINEAR_END = 1e-5  # Final rate of linear decay, as in the reference code.
# The last two are the matrices of an adapter (LoRA).
_KERNELS = ("/kernel", "/lora_kernel_a", "/lora_kernel_b")


def clip_scale(gradients, clip_norm, slices=None):
    """The factor with which the joint norm of all gradients is at most `clip_norm`.

    Args:
        gradients: list of tensors.
        clip_norm: the largest norm, or None: no limit.
        slices: `Slices`, if the gradients are the slices of this replica.

    Returns:
        `(factor, at most 1; norm before clipping)`, float32 scalars.
    """
    norm = slices.global_norm(gradients) if slices else tf.linalg.global_norm(gradients)
    if clip_norm is None:
        return tf.ones_like(norm), norm
    return clip_norm / tf.maximum(norm, clip_norm), norm


class Optimizer:
    """Updates variables from gradients that are already summed over replicas.

    The update of a variable is one op (`custom_ops.adamw_update`). Create the optimizer inside
    `strategy.scope()`. `slots` maps each slot name to a dictionary from variable
    path to slot. Checkpoints store it as `state`, so they do not depend on the variables' order.
    The first slot, the momentum, may be bfloat16: it is read and updated in float32, and rounded
    only where it is stored (docs/paper.md F.4).

    Args:
        variables: Keras variables.
        learning_rate: function of the step, see `make_schedule`.
        clip_norm: largest global norm of the gradient, for `clip_scale`; None: no limit.
        weight_decay: decoupled decay, multiplied by the learning rate.
        weight_decay_mask: "kernels" decays kernels only, "all" every variable.
        momentum_dtype: of the first slot, "float32" or "bfloat16".
        rate_factors: variable path -> factor of the learning rate for this variable, and so also of
            its weight decay; None: 1 for all.
        slices: `Slices`, if each replica keeps and updates its slice; None: all replicas do the
            same.
    """

    slot_names: tuple[str, ...] = ()

    def __init__(
        self,
        variables,
        learning_rate,
        *,
        clip_norm,
        weight_decay,
        weight_decay_mask,
        momentum_dtype,
        rate_factors=None,
        slices=None,
    ):
        self.learning_rate, self.clip_norm = learning_rate, clip_norm
        self.slices = slices
        self._variables = [variable.value for variable in variables]
        paths = [variable.path for variable in variables]
        decayed = [weight_decay_mask == "all" or path.endswith(_KERNELS) for path in paths]
        self._weight_decays = [weight_decay if is_decayed else 0.0 for is_decayed in decayed]
        self._rate_factors = [rate_factors[path] if rate_factors else 1.0 for path in paths]
        self.slots = {
            name: {
                path: self._slot(variable.shape, dtype, f"{path}/{name}")
                for path, variable in zip(paths, self._variables, strict=True)
            }
            for name, dtype in zip(self.slot_names, (momentum_dtype, "float32"), strict=False)
        }
        self.state = tf.Module()
        self.state.slots = self.slots
        self._slots = [tuple(slots[path] for slots in self.slots.values()) for path in paths]

    def _slot(self, shape, dtype, name):
        if self.slices:
            return self.slices.variable(shape, dtype, name)
        return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)

    def apply(self, gradients, step, condition=True, gradient_scale=1.0):
        """Updates every variable; call in replica context, inside `strategy.run`.

        Args:
            gradients: one tensor per variable, equal on all replicas; with `slices`, the slice of
                this replica.
            step: scalar int64 tensor, updates done before this one.
            condition: scalar bool, equal on all replicas; if false, neither variables nor slots
                change.
            gradient_scale: scalar that multiplies all gradients, see `clip_scale`.
        """
        rate, corrections = self.learning_rate(step), self.corrections(tf.cast(step, tf.float32))
        scalars = {
            factor: tf.stack([gradient_scale, factor * rate, *corrections])
            for factor in set(self._rate_factors)
        }
        if self.slices:
            self._update_slices(self.slices, condition, gradients, scalars)
        else:
            update_on_all_replicas(self._update_all, condition, gradients, scalars)

    def _update_slices(self, slices, condition, gradients, scalars):
        """Updates the own slice of everything, and then all weights from the slices of all.

        The collectives run in every step: under a condition, replicas could wait for one another.
        """
        new_weights = []
        for variable, gradient, slots, weight_decay, factor in self._each(gradients):
            weight = slices.own(variable)
            own = [slot.own for slot in slots]
            new, *new_slots = self.updated(weight, gradient, own, scalars[factor], weight_decay)
            for slot, value in zip(own, new_slots, strict=True):
                slot.assign(tf.where(condition, value, slot))
            new_weights.append(tf.where(condition, new, weight))
        wholes = slices.whole(new_weights, [variable.shape for variable in self._variables])
        assign_on_all_replicas(list(zip(self._variables, wholes, strict=True)))

    def _each(self, gradients):
        """Every variable with its gradient, slots, weight decay and factor of the rate."""
        about = self._slots, self._weight_decays, self._rate_factors
        return zip(self._variables, gradients, *about, strict=True)

    def _update_all(self, extended, gradients, scalars):
        for variable, gradient, slots, weight_decay, factor in self._each(gradients):
            extended.update(
                variable,
                self._update,
                args=(gradient, scalars[factor], weight_decay, *slots),
                group=False,
            )

    def _update(self, variable, gradient, scalars, weight_decay, *slots):
        new = self.updated(variable, gradient, slots, scalars, weight_decay)
        for stored, value in zip((variable, *slots), new, strict=True):
            stored.assign(value)

    def corrections(self, step):
        """Scalars that the update of every variable uses, computed once from the float32 step."""
        del step
        return ()

    def updated(self, weight, gradient, slots, scalars, weight_decay):
        """Returns the new weight and the new slots of a variable.

        Args:
            weight, gradient: of one shape.
            slots: list of their slots, in the order of `slot_names`.
            scalars: factor of the gradient, learning rate, and `corrections`.
            weight_decay: number.
        """
        raise TypeError(f"{type(self).__name__} does not define an update.")


class SGD(Optimizer):
    """SGD with momentum (docs/paper.md M.5): v <- beta v + g; p <- p - lr v."""

    slot_names = ("velocity",)

    def __init__(self, variables, learning_rate, *, momentum, **kwargs):
        super().__init__(variables, learning_rate, **kwargs)
        self.momentum = momentum

    def updated(self, weight, gradient, slots, scalars, weight_decay):
        """See `Optimizer.updated`."""
        return custom_ops.sgd_update(
            weight,
            gradient,
            *slots,
            scalars,
            momentum_decay=self.momentum,
            weight_decay=weight_decay,
        )


class AdamW(Optimizer):
    """Adam with decoupled weight decay; epsilon is added after bias correction (docs/paper.md F.4).

    m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
    p <- p - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + wd p).
    """

    slot_names = ("momentum", "variance")

    def __init__(self, variables, learning_rate, *, beta_1, beta_2, epsilon, **kwargs):
        super().__init__(variables, learning_rate, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def corrections(self, step):
        """The bias corrections of both moments."""
        # expm1 computes 1 - beta^t without cancellation; a beta of 0 needs no correction.
        return tuple(
            -tf.math.expm1((step + 1) * math.log(beta)) if beta else tf.ones([])
            for beta in (self.beta_1, self.beta_2)
        )

    def updated(self, weight, gradient, slots, scalars, weight_decay):
        """See `Optimizer.updated`."""
        return custom_ops.adamw_update(
            weight,
            gradient,
            *slots,
            scalars,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=weight_decay,
        )


def optimizer_of(model, config, schedule, zero_kernel, slices=None) -> tuple[Optimizer, list[str]]:
    """Chooses the trained variables and their rates; builds the optimizer, in `strategy.scope()`.

    Args:
        model: a built model; some of its variables may be frozen afterwards.
        config, schedule: as for `make_optimizer`.
        zero_kernel: as for `freezing.freeze`.
        slices: as for `Optimizer`.

    Returns:
        The optimizer, and lines of text about frozen variables.

    Raises:
        UserError: as `freezing.freeze`.
    """
    only = config.train_only
    if config.lora:
        top = [layer.name for layer in (model.pre_logits, model.head) if layer is not None]
        only = (*(only or top), "*/lora_kernel_[ab]")
    notes = freeze(model, config.freeze, zero_kernel, only)
    rates = layer_rates(model, config.layer_decay)
    return make_optimizer(config, schedule, model.trainable_variables, rates, slices), notes


def layer_rates(model, decay) -> dict[str, float] | None:
    """Factors of the learning rate for `optimizer.layer_decay` (docs/paper.md F.9).

    With the groups g = 0 .. G of `ImageModel.depth_groups`, the factor is decay^(G - g). In a ViT
    with L layers, G = L + 1: head and final norm have the factor 1, layer i = 0 .. L - 1 has
    decay^(L - i), and the embeddings (stem, patches, class token, positions) have decay^(L + 1). In
    a ResNet with S stages, the head has 1, stage s = 1 .. S has decay^(S + 1 - s), and the root has
    decay^(S + 1).

    Args:
        model: a built model of `vit_tf`.
        decay: above 0 to 1.

    Returns:
        Path of each trainable variable -> its factor; None if decay is 1.
    """
    if decay == 1:
        return None
    groups = model.depth_groups()
    return {
        variable.path: decay ** (len(groups) - 1 - index)
        for index, layers in enumerate(groups)
        for layer in layers
        for variable in layer.trainable_variables
    }


def make_optimizer(config, schedule, variables, rate_factors=None, slices=None) -> Optimizer:
    """Builds the optimizer that a configuration describes; call it inside `strategy.scope()`.

    Args:
        config: `pipelines.config.Optimizer`.
        schedule: learning rate as a function of the step, see `make_schedule`.
        variables: Keras variables.
        rate_factors: variable path -> factor of its learning rate, see `layer_rates`; None: 1.
        slices: as for `Optimizer`.
    """
    shared = {
        "slices": slices,
        "rate_factors": rate_factors,
        "clip_norm": config.clip_norm,
        "weight_decay": config.weight_decay,
        "weight_decay_mask": config.weight_decay_mask,
        "momentum_dtype": config.momentum_dtype,
    }
    if config.name == "sgd":
        return SGD(variables, schedule, momentum=config.momentum, **shared)
    betas = {"beta_1": config.beta_1, "beta_2": config.beta_2}
    return AdamW(variables, schedule, epsilon=config.epsilon, **betas, **shared)


def make_schedule(config, peak, total_steps):
    """Returns the learning rate by step: linear warm-up, then decay (docs/paper.md F.3).

    Args:
        config: `pipelines.config.Schedule`: warm-up, and decay "linear" to 1e-5 (or the peak, if
            that is lower), "cosine" to 0, "constant", or "staircase", which divides the rate by
            ten after each fraction `decay_at` of the steps.
        peak: rate at the end of the warm-up: a number, or a scalar float64 variable that is read
            in each call.
        total_steps: updates of the whole run.

    Returns:
        Function that maps the number of updates done, a scalar tensor or number, to the rate of the
        next update, a scalar float32 tensor. With warm-up, the first update has the rate 0.
    """
    decay = {
        "linear": _linear,
        "cosine": _cosine,
        "constant": _constant,
        "staircase": _constant,  # And the boundaries below.
    }[config.decay]
    warmup_steps = config.warmup_steps
    boundaries = [round(fraction * total_steps) for fraction in config.decay_at]

    def learning_rate(step):
        # float64: float32 has too few digits for the progress of half a million steps.
        step = tf.cast(step, tf.float64)
        progress = tf.clip_by_value((step - warmup_steps) / (total_steps - warmup_steps), 0.0, 1.0)
        rate = decay(peak, progress)
        for boundary in boundaries:
            rate *= tf.where(step > boundary, tf.constant(0.1, tf.float64), 1.0)
        if warmup_steps:
            rate *= tf.clip_by_value(step / warmup_steps, 0.0, 1.0)
        return tf.cast(rate, tf.float32)

    return learning_rate


def _linear(peak, progress):
    end = tf.minimum(peak, LINEAR_END) if tf.is_tensor(peak) else min(peak, LINEAR_END)
    return end + (peak - end) * (1.0 - progress)


def _cosine(peak, progress):
    return peak * 0.5 * (1.0 + tf.cos(math.pi * progress))


def _constant(peak, progress):
    del progress
    return tf.convert_to_tensor(peak, tf.float64)
