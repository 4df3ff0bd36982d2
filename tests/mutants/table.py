"""A fault: one replacement in one file of the product."""

import ast
import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        path: the file, below the checkout.
        kind: a short label.
        old: text that is in the file once.
        new: what takes its place.
        equivalent: why the replacement changes no behavior; such a fault does not count.
    """

    path: str
    kind: str
    old: str
    new: str
    equivalent: str = ""

    @property
    def is_cpp(self):
        """Whether the file is compiled."""
        return not self.path.endswith(".py")

    @property
    def module(self):
        """The package and the folder or module in it, such as `vit_tf/layers`."""
        return "/".join(self.path.removesuffix(".py").split("/")[:2])

    def __str__(self):
        return f"{self.path}: {self.kind}"

    def applied(self, text):
        """The text of the file with the fault."""
        return text.replace(self.old, self.new)

    def problem(self, root):
        """The problem of the entry in a checkout, as a text; None if it can be applied."""
        try:
            text = (pathlib.Path(root) / self.path).read_text()
        except FileNotFoundError:
            return f"{self}: there is no such file."
        if (count := text.count(self.old)) != 1:
            return f"{self}: the old text is there {count} times. Expected once: {self.old!r}"
        if self.applied(text) == text:
            return f"{self}: the new text equals the old text."
        if not self.is_cpp:
            try:
                ast.parse(self.applied(text))
            except SyntaxError as error:
                return f"{self}: the new text is no Python: {error}."
        return None
