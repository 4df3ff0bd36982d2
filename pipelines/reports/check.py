"""A number beside what is expected of it, for a page."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A number of the run and its expected value; `passed=None` means that it is only shown."""

    name: str
    value: str
    expected: str = ""
    passed: bool | None = None
