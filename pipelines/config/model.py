"""The model section: a model variant, and the configuration fields that differ from it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipelines.config.fields import check_choices, field_types, from_json
from pipelines.config.names import Dtype
from pipelines.errors import UserError
from vit_tf.config import ModelConfig, StemConfig
from vit_tf.config.checks import SYNONYMS
from vit_tf.config.near_names import did_you_mean
from vit_tf.config.size_notes import one_patch
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.config.vit import Recompute

# Configuration fields that `Model.fields` does not hold: `image_size` and `recompute` are fields of
# `Model`, the data set decides the number of classes, and a run may use any implementation of the
# ops.
_SET_ELSEWHERE = ("image_size", "num_classes", "implementation", "recompute")


class FrozenDict(dict):
    """A read-only `dict`. `copy`, `pickle` and `dataclasses.asdict` work as for a `dict`."""

    def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("This dictionary cannot be changed. Make a new one: {**old, key: value}.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self):
        return type(self), (dict(self),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model variant and the fields that differ from it.

    In JSON and in `--set`, these fields are on the same level as `name`: `model.layers`,
    `model.stem.width`.

    Attributes:
        name: one of `vit_tf.list_models()`.
        image_size: (height, width) in pixels; in `--set`, one number means a square.
        dtype: Keras dtype policy, "float32", "mixed_bfloat16" or "mixed_float16".
        recompute: "blocks" computes the activations inside each encoder block of a ViT or hybrid
            again in the backward pass, which takes less memory and more time; "none" keeps them.
        fields: fields of the variant's configuration class, such as `vit_tf.ViTConfig`, by dotted
            path: `{"layers": 4, "stem.stage_depths": (1, 2)}`. A field that is missing or `None`
            has the variant's own value. A ViT with a stem is a hybrid.

    Raises:
        UserError: for a field that the variant does not have, or an invalid value.
    """

    name: str = "ViT-B/16"
    image_size: tuple[int, int] = (224, 224)
    dtype: Dtype = "float32"
    recompute: Recompute = "none"
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        check_choices(self, "model.", synonyms=SYNONYMS)
        known = model_field_types(self.name)
        for path in self.fields:
            if path not in known:
                raise unknown_field(path, self.name)
        checked = {
            path: from_json(kind, self.fields[path], f"model.{path}")
            for path, kind in known.items()
            if self.fields.get(path) is not None
        }
        object.__setattr__(self, "fields", FrozenDict(checked))
        try:
            self.config(num_classes=1)
        except (TypeError, ValueError) as error:
            raise UserError(f"model: {error}") from None

    def config(self, num_classes: int) -> ModelConfig:
        """Returns the model configuration that this section describes."""
        variant, changed = get_variant(self.name), dict(self.fields)
        stem = {path: changed.pop(path) for path in self.fields if path.startswith("stem.")}
        if stem:
            # Only variants with a field `stem` accept these paths.
            present = getattr(variant, "stem", None)
            if present is None and "stem.stage_depths" not in stem:
                left_out = ", ".join(f"model.{path}" for path in stem)
                raise ValueError(
                    f"{self.name} has no stem. Set model.stem.stage_depths too, or leave out "
                    f"{left_out}."
                )
            values = {path.removeprefix("stem."): value for path, value in stem.items()}
            changed["stem"] = (present or StemConfig()).replace(**values)
        if self.recompute != "none":
            if not hasattr(variant, "recompute"):
                raise ValueError(
                    f"recompute={self.recompute} needs encoder blocks, which {self.name} does not "
                    "have. Use none."
                )
            changed["recompute"] = self.recompute
        return variant.replace(image_size=self.image_size, num_classes=num_classes, **changed)

    def title(self) -> str:
        """The name, with the sizes that differ from the variant."""
        variant, config = get_variant(self.name), self.config(num_classes=1)
        sizes = {x: getattr(config, x) for x in sorted(type(variant).size_fields)}
        other = [f"{x}={size}" for x, size in sizes.items() if size != getattr(variant, x)]
        return f"{self.name} with {', '.join(other)}" if other else self.name

    def for_variant(self, name: str) -> dict[str, Any]:
        """Returns this section as a dictionary, for another variant.

        Sizes, and fields that the other variant does not have, are left out.
        """
        known = {path.partition(".")[0] for path in model_field_types(name)}
        kept = (known | _OWN_TYPES.keys()).difference(type(get_variant(name)).size_fields)
        return {key: value for key, value in self.to_dict().items() if key in kept} | {"name": name}

    def check_grid(self):
        """Raises `UserError` if an image is a single patch."""
        if note := one_patch(self.config(num_classes=1), "model."):
            raise UserError(f"{self.name}: {note}")

    def fit_pre_logits(self, values: dict[str, Any]) -> list[str]:
        """Fits the pre-logits to a changed model; returns a sentence if they change.

        In another variant they have its hidden size. If `classifier` changes to another one than
        "token", they are left out: the paper's GAP head is linear (docs/paper.md A.9).

        Args:
            values: the section of the changed model, changed in place: a dictionary of `to_dict`
                or, for another variant, of `for_variant`.
        """
        old, variant = self.config(num_classes=1).to_dict(), get_variant(values["name"]).to_dict()
        path = "representation_size"
        if (size := old.get(path)) is None or path not in variant:
            return []
        classifier = values.get("classifier") or variant["classifier"]
        if classifier not in ("token", old["classifier"]):
            values[path] = None
            head = f"model.classifier={classifier} has a linear head"
            return [f"{head}: model.{path}={size} of the recipe is left out"]
        fitting = values.setdefault(path, values.get("hidden_size") or variant["hidden_size"])
        if fitting == size:
            return []
        return [f"model.{path}={fitting} instead of {size}: the hidden size of {values['name']}"]

    @classmethod
    def of(cls, config: ModelConfig, dtype: Dtype, near: str) -> "Model":
        """Returns the section of a configuration of any family.

        Args:
            config: the configuration; `num_classes` and `implementation` are left out.
            dtype: Keras dtype policy.
            near: name of the variant to take if several are equally near.
        """
        options = {
            name: changed_fields(variant, config)
            for name, variant in VARIANTS.items()
            if variant.family == config.family
            # A section cannot remove a stem.
            and (getattr(config, "stem", None) or not getattr(variant, "stem", None))
        }
        name = min(options, key=lambda name: (len(options[name]), name != near))
        return cls(name=name, image_size=config.image_size, dtype=dtype, fields=options[name])

    def to_dict(self) -> dict[str, Any]:
        """Returns the section with its fields beside `name`, and the stem's as a dictionary."""
        own = ("name", "image_size", "dtype", "recompute")
        values = {name: getattr(self, name) for name in own}
        for path, value in self.fields.items():
            section, _, name = path.rpartition(".")
            (values.setdefault(section, {}) if section else values)[name] = value
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Model":
        """Inverse of `to_dict`; `UserError` for unknown fields and wrong types."""
        if not isinstance(values, dict):
            raise UserError(f"model must be an object. Received: {values!r}.")
        own, fields = {}, {}
        for name, value in values.items():
            if name in _OWN_TYPES:
                own[name] = from_json(_OWN_TYPES[name], value, f"model.{name}")
            elif isinstance(value, dict):
                fields |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                fields[name] = value
        return cls(**own, fields=fields)


_OWN_TYPES = {name: kind for name, kind in field_types(Model).items() if name != "fields"}


def changed_fields(old: ModelConfig, new: ModelConfig) -> dict[str, Any]:
    """Returns the fields of `new` that differ from `old`, of the same family, by dotted path.

    Image size, number of classes and implementation of the ops are left out.
    """
    paths = [path for path in field_types(type(new)) if path not in _SET_ELSEWHERE]
    values = {path: (_field(old, path), _field(new, path)) for path in paths}
    return {path: after for path, (before, after) in values.items() if before != after}


def _field(config, path):
    section, _, name = path.rpartition(".")
    holder = getattr(config, section) if section else config
    return None if holder is None else getattr(holder, name)


def model_field_types(name: str | None) -> dict[str, Any]:
    """Returns the type of each field in `Model.fields` of the variant `name`, by dotted path.

    Without a name: the fields of all variants. Fields of one name have one type in all of them.

    Raises:
        UserError: for an unknown variant.
    """
    try:
        variants = VARIANTS.values() if name is None else [get_variant(name, section="model.")]
    except ValueError as error:
        raise UserError(f"model: {error}") from None
    return {
        path: kind | None
        for config in dict.fromkeys(map(type, variants))
        for path, kind in field_types(config).items()
        if path not in _SET_ELSEWHERE
    }


def unknown_field(path, name) -> UserError:
    """Returns the error to raise if the variant `name` has no field `path`."""
    known = [*_OWN_TYPES, *model_field_types(name)]
    return UserError(
        f"Unknown model field {path!r} of {name}.{did_you_mean(path, known)} Its fields: "
        f"{', '.join(known)}."
    )
