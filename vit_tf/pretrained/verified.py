"""The published files that were verified, with their digests. Loads no framework.

`python -m pipelines.verify_weights --output=vit_tf/assets/verified_weights.json NAME` adds files.
"""

import dataclasses
import functools
import json
import pathlib

PATH = pathlib.Path(__file__).parent.parent / "assets" / "verified_weights.json"


@dataclasses.dataclass(frozen=True)
class VerifiedFile:
    """What identifies a verified file, and the outputs of its model for two fixed images.

    Attributes:
        sha256: of the file, in hexadecimal.
        first: the first outputs for each image.
        norms: the Euclidean norm of all outputs for each image.
    """

    sha256: str
    first: tuple[tuple[float, ...], ...]
    norms: tuple[float, ...]


def verified_files() -> dict[str, VerifiedFile]:
    """The verified files by the name of their weights."""
    return _read(PATH)


@functools.cache
def _read(path):
    return {
        name: VerifiedFile(
            sha256=file["sha256"],
            first=tuple(map(tuple, file["outputs"]["first"])),
            norms=tuple(file["outputs"]["norms"]),
        )
        for name, file in json.loads(path.read_text("utf-8")).items()
    }
