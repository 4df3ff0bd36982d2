"""Base classes of the configurations of all families."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from vit_tf.config.other_keywords import field_hint

# The family of a dictionary without the key "family"; `to_dict` of this family omits the key.
_DEFAULT_FAMILY = "vit"


def family_name(fields) -> str:
    """The name of the family whose `to_dict` returned these fields."""
    is_dict = isinstance(fields, dict)
    return fields.get("family", _DEFAULT_FAMILY) if is_dict else _DEFAULT_FAMILY


class Config:
    """Base of frozen dataclasses: checks field names, converts to and from JSON dictionaries."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field]]

    def replace(self, **fields):
        """Returns a copy in which `fields` have new values."""
        self._check_names(fields)
        return dataclasses.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; `from_dict` reads them back."""
        return {key: _jsonable(value) for key, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]):
        """Inverse of `to_dict`.

        Raises:
            ValueError: if a field is unknown, missing or illegal.
            TypeError: if a field has the wrong type.
        """
        cls._check_names(fields)
        required = {
            field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING
        }
        if missing := sorted(required - fields.keys()):
            raise ValueError(
                f"A {cls.__name__} needs the fields {missing}. Received: {sorted(fields)}."
            )
        return cls(**fields)

    @classmethod
    def coerce(cls, value):
        """`value` if it is a configuration of this class, else `from_dict(value)`."""
        return value if isinstance(value, cls) else cls.from_dict(value)

    @classmethod
    def _check_names(cls, fields):
        if not isinstance(fields, dict):
            raise ValueError(
                f"A {cls.__name__} is made of a dictionary of its fields. Received: {fields!r}."
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise ValueError(
                    f"Unknown model field {name!r}.{field_hint(name, known)} Known fields: {known}."
                )


class ModelConfig(Config):
    """Configuration of a model of any family.

    Every family has these fields and properties, and a method `summary`.
    """

    image_size: tuple[int, int]
    num_classes: int
    head_bias: float

    # The name of the family; its key in the dictionary is "family".
    family: ClassVar[str]
    # Fields that define a variant: choosing another variant replaces their values.
    size_fields: ClassVar[tuple[str, ...]]

    @property
    def pooled(self) -> bool:
        """Whether the model returns one result per image."""
        return True

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of whole patches in an image; None for a model without patches."""
        return None

    @property
    def patch_pixels(self) -> int | None:
        """Side of a patch in pixels of the image; None for a model without patches."""
        return None

    @property
    def has_class_token(self) -> bool:
        """Whether token 0 is a class token."""
        return False

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return 0

    @property
    def mutual_places(self) -> int:
        """Tokens, or pixels of a feature map, that all attend to one another; 0 if none do.

        The time of this attention grows with the square of the number.
        """
        return 0

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether images of a batch change each other's outputs in training."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields and the name of the family; `from_dict` reads them back."""
        family = {} if self.family == _DEFAULT_FAMILY else {"family": self.family}
        return family | super().to_dict()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]):
        """Inverse of `to_dict`, for the fields of this family."""
        if isinstance(fields, dict) and fields.get("family") == cls.family:
            fields = {key: value for key, value in fields.items() if key != "family"}
        return super().from_dict(fields)


def _jsonable(value):
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
