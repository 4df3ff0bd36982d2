"""A run that the machine cannot hold is refused before anything is allocated."""

import pytest

from pipelines.errors import UserError
from pipelines.training.prepare import resolve
from tests.pipelines.tiny import tiny_experiment
from vit_tf import create


@pytest.mark.parametrize("task", ["classification", "masked_patches"])
def test_a_run_is_refused(task, monkeypatch):
    experiment = tiny_experiment(f"task={task}")
    resolve(experiment, None, replicas=1)
    monkeypatch.setattr(create, "_memory_bytes", lambda: 1000)
    with pytest.raises(UserError, match="parameters. It needs .* of memory. Choose"):
        resolve(experiment, None, replicas=1)
