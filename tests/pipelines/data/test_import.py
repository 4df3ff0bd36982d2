"""Importing the data packages prints nothing and starts no device."""

import subprocess
import sys

import pytest

from tests.pipelines.process import ROOT, run_module

pytestmark = pytest.mark.process


def test_import_is_silent_and_starts_no_device():
    result = run_module("tests.pipelines.programs.import_data", cwd=ROOT, cold=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_order_needs_no_tensorflow():
    program = "import sys, pipelines.data.order; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
