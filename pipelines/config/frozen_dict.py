"""A read-only dictionary, for fields of frozen dataclasses."""

from typing import Any


class FrozenDict(dict):
    """A read-only `dict`. `copy`, `pickle` and `dataclasses.asdict` work as for a `dict`."""

    def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("This dictionary cannot be changed. Make a new one: {**old, key: value}.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self):
        return type(self), (dict(self),)
