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


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_lock_has_exact_versions_and_nothing_else(pins):
    for line in pins:
        requirement = Requirement(line)
        assert [s.operator for s in requirement.specifier] == ["=="], line
        assert requirement.url is None and requirement.marker is None, line
    names = [canonicalize_name(Requirement(line).name) for line in pins]
    assert len(set(names)) == len(names) > 100
    assert not {"vit-tf", "pip"} & set(names)


def test_lock_fits_the_ranges_of_the_project(project, pins):
    versions = {canonicalize_name(name): v for name, v in (line.split("==") for line in pins)}
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
    assert set(tags) == {vit_tf.__version__}


def test_accepted_vulnerabilities_have_a_package_and_a_reason(pins):
    lines = (ROOT / ".ci" / "vulnerabilities.txt").read_text().splitlines()
    for line in lines:
        if not line.startswith("#"):
            name, package, reason = line.split(None, 2)
            assert re.match(r"(PYSEC|GHSA|CVE)-", name) and len(reason.split()) > 3
            assert any(pin.startswith(f"{package}==") for pin in pins)


def test_the_other_lock_differs_in_what_tensorflow_demands_only(project, pins):
    lines = (ROOT / "requirements-tf2.21.lock").read_text().splitlines()
    others = {line for line in lines if not line.startswith("#")} - set(pins)
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
