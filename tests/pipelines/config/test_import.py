"""Reading a configuration loads no framework."""

import pytest

from tests.pipelines.process import ROOT, run_module


@pytest.mark.process
def test_a_configuration_loads_no_framework():
    result = run_module("tests.pipelines.programs.import_config", cwd=ROOT, cold=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")
