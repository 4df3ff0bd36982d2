"""What a run is: experiments, their fields, overrides and recipes. Loads no framework."""

from pipelines.config.experiment import (
    Data,
    Experiment,
    Model,
    Optimizer,
    Schedule,
    Train,
    config_paths,
    override,
)

__all__ = [
    "Data",
    "Experiment",
    "Model",
    "Optimizer",
    "Schedule",
    "Train",
    "config_paths",
    "override",
]
