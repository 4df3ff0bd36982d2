"""Whether a study was declared before its first run, by the history of the declaration's files."""

import dataclasses
import datetime
import importlib.util
import os
import re
import subprocess

_TOY = "pipelines.research.paper.toy"
_IMPORT = re.compile(rf"^from {re.escape(_TOY)}(?:\.(\w+))? import (.+?)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Registration:
    """When a study was declared, and when it first ran.

    Attributes:
        commit: the one that last changed the files of the declaration; None if git does not know,
            as in a shallow clone.
        committed: its time, ISO 8601.
        changed: whether the files differ from it.
        first_run: the time of the first training of the study's results, ISO 8601; None: unknown.
    """

    commit: str | None
    committed: str | None
    changed: bool
    first_run: str | None

    @property
    def is_confirmatory(self) -> bool:
        """Whether the declaration was committed before the first run, and is the same now."""
        if self.commit is None or self.changed or self.first_run is None:
            return False
        committed, first = map(datetime.datetime.fromisoformat, (self.committed, self.first_run))
        return committed < first

    @property
    def text(self) -> str:
        """A sentence."""
        if self.commit is None:
            return "exploratory: there is no history of the declaration here"
        declared = f"declared in commit {self.commit[:8]} of {self.committed}"
        if self.first_run is None:
            return f"exploratory: {declared}; when its results began is not known"
        ran = f"first run {self.first_run}"
        if self.changed:
            return f"exploratory: the declaration differs from commit {self.commit[:8]}; {ran}"
        if self.is_confirmatory:
            return f"confirmatory: {declared}, {ran}"
        return f"exploratory: {declared}, after the {ran}"


def register(study, first_run) -> Registration:
    """The registration of a study at toy scale.

    Fields of a set-up that other modules share are in the names of the units: a change there runs
    them anew.

    Args:
        study: the `Study`.
        first_run: see `Registration`.
    """
    files = declaration(study.run.__module__)
    folder = os.path.dirname(files[0])
    commit, committed, *parents = _git(
        folder, "log", "-1", "--format=%H %cI %P", "--", *files
    ).split() or (None, None)
    # The oldest commit of a shallow clone seems to have made all files.
    is_cut = not parents and _git(folder, "rev-parse", "--is-shallow-repository") == "true"
    if commit is None or is_cut:
        return Registration(commit=None, committed=None, changed=False, first_run=first_run)
    changed = _git(folder, "status", "--porcelain", "--", *files)
    return Registration(
        commit=commit, committed=committed, changed=bool(changed), first_run=first_run
    )


def declaration(module) -> list[str]:
    """The file of a study's module, and those of the modules of studies that it imports from."""
    names, files = [module], []
    for name in names:  # It grows in the loop.
        spec = importlib.util.find_spec(name)
        files.append(spec.origin)
        with open(spec.origin, encoding="utf-8") as file:
            for parent, imported in _IMPORT.findall(file.read()):
                found = [parent] if parent else re.split(r"[(,\s)]+", imported)
                names += [
                    f"{_TOY}.{each}" for each in found if each and f"{_TOY}.{each}" not in names
                ]
    return files


def _git(folder, *arguments):
    """What git prints; "" without git, or outside a repository."""
    try:
        return subprocess.run(
            ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
