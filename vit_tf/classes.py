"""A setting stored with weights: the classes of a model, and what its logits mean.

Files hold it in one object with `Preprocessing`. TensorFlow is imported only when it is used.
"""

import dataclasses
from typing import Literal

# The keys of `Classes` in files.
CLASSES_KEYS = ("labels", "probabilities")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of a model: their names, and how logits become probabilities.

    A model with one output is a sigmoid, whatever `activation` says: the softmax of one logit is
    always 1.

    Attributes:
        labels: class names in label order; empty if they are unknown. A model with one output may
            have two names: the output is the logit of the second one.
        activation: "softmax", or "sigmoid" where several classes may be true at once.

    Raises:
        ValueError: if a field has the wrong type.
    """

    labels: tuple[str, ...] = ()
    activation: Literal["softmax", "sigmoid"] = "softmax"

    def __post_init__(self):
        if not (
            isinstance(self.labels, tuple | list)
            and all(isinstance(label, str) for label in self.labels)
        ):
            raise ValueError(f"labels={self.labels!r} are not class names. Expected strings.")
        if self.activation not in ("softmax", "sigmoid"):
            raise ValueError(
                f"{self.activation!r} gives no probabilities. Expected softmax or sigmoid."
            )
        object.__setattr__(self, "labels", tuple(self.labels))

    def names(self, count) -> tuple[str, ...]:
        """The names of the classes of `count` outputs in label order; indices if unknown."""
        return self.labels or tuple(str(index) for index in range(count))

    def fit(self, outputs) -> bool:
        """Whether a model with this number of outputs can have these names."""
        return len(self.labels) in ((0, 1, 2) if outputs == 1 else (0, outputs))

    def activation_of(self, outputs) -> str:
        """The `activation` of a model with this number of outputs."""
        return "sigmoid" if outputs == 1 else self.activation

    def to_probabilities(self, logits):
        """Converts logits `[..., K]` to probabilities `[..., C]` of the `C` classes in `names`.

        `C` is `K`, but 2 for one output with two names.
        """
        import tensorflow as tf

        outputs = logits.shape[-1]
        if outputs == 1 and len(self.labels) == 2:
            return tf.nn.sigmoid(tf.concat([-logits, logits], axis=-1))
        is_sigmoid = self.activation_of(outputs) == "sigmoid"
        return tf.nn.sigmoid(logits) if is_sigmoid else tf.nn.softmax(logits)

    def note(self, outputs) -> str | None:
        """A clause for people about one output whose second class has no name; else None.

        None too if the model states that it is a sigmoid.
        """
        if outputs != 1 or len(self.labels) == 2 or self.activation == "sigmoid":
            return None
        [name] = self.names(1)
        return (
            f"the model has one output: the probability of {name!r} is its sigmoid, the rest is "
            "that of a class without a name; with two names, both classes are answered"
        )

    def to_dict(self):
        """Returns the fields with the keys that files have; `from_dict` reads them back."""
        return {"labels": list(self.labels), "probabilities": self.activation}

    @classmethod
    def from_dict(cls, fields):
        """Creates `Classes` from a dictionary of a file, which may have other keys too.

        Raises:
            ValueError: if a value has the wrong type.
        """
        stored = cls().to_dict() | fields
        return cls(labels=stored["labels"], activation=stored["probabilities"])
