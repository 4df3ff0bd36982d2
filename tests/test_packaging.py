"""`pip install .` installs all files, the lock file has all required packages; one version."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vit_tf
from custom_ops.building import build_plan
from tests.architecture import ROOT

PACKAGES = ("custom_ops", "vit_tf", "pipelines")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lines_of(file):
    """The lines of a file without comments."""
    return [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def pins():
    return lines_of("requirements.lock")


@pytest.mark.parametrize(
    "file, least",
    [("requirements.lock", 100), ("requirements-tf2.21.lock", 20), (".ci/release-tools.txt", 50)],
)
def test_lock_has_exact_versions_and_nothing_else(file, least):
    for line in lines_of(file):
        requirement = Requirement(line)
        assert [s.operator for s in requirement.specifier] == ["=="], line
        assert requirement.url is None and requirement.marker is None, line
    names = [canonicalize_name(Requirement(line).name) for line in lines_of(file)]
    assert len(set(names)) == len(names) > least
    assert not {"vit-tf", "pip"} & set(names)


def test_lock_fits_the_ranges_of_the_project(project, pins):
    # Ray is not in requirements.lock: `make test-ray` alone installs it.
    ray = [x for x in (ROOT / ".ci/ray.txt").read_text().splitlines() if not x.startswith("#")]
    pinned = (line.split("==") for line in [*pins, *ray])
    versions = {canonicalize_name(name): version for name, version in pinned}
    wanted = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    assert len(wanted) >= 10
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])


def test_the_version_is_the_same_everywhere(project):
    version = re.escape(vit_tf.__version__)
    assert "version" in project["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"(?m)^version: {version}$", citation)
    newest = re.search(r"(?m)^## .*", (ROOT / "CHANGELOG.md").read_text())[0]
    heading = re.fullmatch(rf"## {version} \((unreleased|\d{{4}}-\d\d-\d\d)\)", newest)
    assert heading, newest
    date = re.search(r"(?m)^date-released: (\S+)$", citation)
    assert heading[1] == (date[1] if date else "unreleased")
    tags = re.findall(r"vit-tf:([\d.]*\d)", (ROOT / "docs" / "serving.md").read_text())
    wheels = re.findall(r"vit_tf-([\d.]+)-cp", (ROOT / "README.md").read_text())
    assert set(tags) == set(wheels) == {vit_tf.__version__}


def test_security_fixes_go_to_the_newest_released_version():
    security = (ROOT / "SECURITY.md").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"(?m)^## (\d+\.\d+)\.\d+ \(\d{4}-", changelog)
    newest = released[0] if released else vit_tf.__version__.rpartition(".")[0]
    assert re.findall(r"(?m)^\| (\d\S*) \| yes \|$", security) == [f"{newest}.x"]
    first = re.findall(r"No version is released yet: until (\S+), ", security)
    assert first == ([] if released else [vit_tf.__version__])


def is_accepted_with_reason(line, pins):
    """Whether a line has an ID, a package of the lock file, and a reason of four words or more."""
    found = re.fullmatch(r"(?:PYSEC|GHSA|CVE)-\S+\s+(\S+)((?:\s+\S+){4,})", line)
    return bool(found) and any(pin.startswith(f"{found[1]}==") for pin in pins)


@pytest.mark.parametrize(
    "line, is_right",
    [
        ("CVE-2026-1 keras 2026-11-26: no version has a fix", True),
        ("PYSEC-2026-7  keras  nothing here runs it", True),
        ("OSV-2026-1 keras no version has a fix", False),
        ("CVE-2026-1 kera no version has a fix", False),
        ("CVE-2026-1 keras no fix", False),
        ("CVE-2026-1", False),
    ],
)
def test_a_vulnerability_is_accepted_with_a_package_and_a_reason(pins, line, is_right):
    assert is_accepted_with_reason(line, pins) == is_right


def test_accepted_vulnerabilities_have_a_package_and_a_reason(pins):
    for line in lines_of(".ci/vulnerabilities.txt"):
        assert is_accepted_with_reason(line, pins), line


def test_the_other_lock_differs_in_what_tensorflow_demands_only(project, pins):
    others = {*lines_of("requirements-tf2.21.lock")} - set(pins)
    found = dict(line.split("==") for line in others)
    assert found.keys() == {"tensorflow", "h5py"} and found["tensorflow"].startswith("2.21.")
    ranges = {x.name: x.specifier for x in map(Requirement, project["dependencies"])}
    assert all(ranges[name].contains(version) for name, version in found.items())


@pytest.mark.process
def test_wheel_has_every_module_and_asset(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    # Use a clean folder: a build leaves copies of deleted files beside its sources.
    expected = {
        path.relative_to(source).as_posix()
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
        and (
            path.suffix in (".py", ".css", ".html", ".js", ".json", ".typed")
            or "assets" in path.parts
        )
    }
    # The sources of the ops, which a rebuild needs; tests/custom_ops tests the built files.
    sources = ["sources.bzl", build_plan.sources()["EXPORTS"], *build_plan.source_files()]
    expected |= {f"custom_ops/{file}" for file in sources}

    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--no-index", "--quiet", "--wheel-dir", str(tmp_path), str(source)]
    environment = os.environ | {"VIT_BUILD_OPS": "0"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob(f"vit_tf-{vit_tf.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        [scripts] = [x for x in archive.namelist() if x.endswith("entry_points.txt")]
        assert "vit-tf = pipelines.cli.console:main" in archive.read(scripts).decode()
    assert packed == expected
    assert any(name.startswith("vit_tf/assets/") for name in packed)
