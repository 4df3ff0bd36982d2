"""The files of a model for all systems, kept in `build/peers` until the sources change."""

import hashlib
import shutil
import subprocess
import sys

from benchmarks.peers.systems import EXPORTS, SYSTEMS
from tests.checkout import ROOT

BUILD = ROOT / "build" / "peers"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
_PACKAGES = ("custom_ops", "vit_tf", "pipelines")
_MODULES = ("prepare.py", "onnx_model.py", "operations.py", "systems.py")


def prepare(name, activation, systems):
    """Makes the files that are missing; returns their folder.

    Args:
        name: name of the model.
        activation: "gelu_tanh" or "gelu_erf".
        systems: the rows of `SYSTEMS` that will run.
    """
    place = BUILD / f"{name.replace('/', '-')}-{activation}"
    folder = place / digest()
    if place.exists():
        for old in set(place.iterdir()) - {folder}:
            shutil.rmtree(old)
    used = {SYSTEMS[x].options.get("export", "").partition("/")[0] for x in systems}
    exports = [row for row in EXPORTS if row in used]
    module = "benchmarks.peers.prepare"
    run(sys.executable, "-m", module, name, activation, str(folder), *exports)
    if PEERS.exists() and not (folder / "model.onnx").exists():
        module = "benchmarks.peers.onnx_model"
        run(str(PEERS), "-m", module, str(folder), fix="`make peers` updates .venv-peers.")
    return folder


def run(*command, fix=""):
    """The output of a program; if it fails, ends this one with its last lines and the way out."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr[-3000:]}{fix}")
    return done.stdout


def digest():
    """Short hash of everything that the files are made from."""
    paths = [ROOT / "benchmarks" / "peers" / module for module in _MODULES]
    for package in _PACKAGES:
        paths += [*(ROOT / package).rglob("*.py"), *(ROOT / package).glob("*.so")]
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0")
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]
