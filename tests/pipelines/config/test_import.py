"""Reading a configuration loads no framework."""

import subprocess
import sys

import pytest

from tests.pipelines.process import ROOT

PROGRAM = """
import sys
import pipelines.cli, pipelines.config, pipelines.config.names, pipelines.config.recipes
from pipelines.config import Experiment, override

recipe = pipelines.config.recipes.get_recipe("digits")
experiment = override(recipe, ["model.name=R50+ViT-B/16", "model.image_size=224"])
assert Experiment.from_dict(experiment.to_dict()) == experiment
experiment.model.config(10).summary()
experiment.preprocessing(["a", "b"])
heavy = ("tensorflow", "keras", "tensorflow_datasets", "orbit", "h5py", "numpy", "packaging")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.process
def test_a_configuration_loads_no_framework():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[]\n"
