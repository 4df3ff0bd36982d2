"""Strengths of the regularization of few-shot evaluations (docs/paper.md H.1)."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Strength:
    """A strength as it is asked for: absolute, or a multiple of the number of training examples.

    The published strength is absolute: 1024 for any number of examples. As the squared errors are
    summed over the examples, a multiple regularizes small and large sets alike.

    Attributes:
        value: the number.
        per_example: whether it is multiplied by the number of training examples.
    """

    value: float
    per_example: bool = False

    @classmethod
    def parse(cls, text) -> "Strength":
        """Reads a number, or a number and `n` for a multiple; `ValueError` for other texts."""
        text = text.strip()
        try:
            return cls(float(text))  # Before the `n`, since "nan" ends with one.
        except ValueError:
            if not text.endswith("n"):
                raise
            return cls(float(text[:-1]), per_example=True)

    def __str__(self):
        return f"{self.value:g}{'n' * self.per_example}"

    def absolute(self, examples) -> float:
        """The strength for a number of training examples, as `few_shot.solve` takes it."""
        return self.value * examples if self.per_example else self.value
