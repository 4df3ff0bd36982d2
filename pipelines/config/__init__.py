"""Configuration of a run: experiments, fields, overrides and recipes. Loads no framework."""

from pipelines.config.data import Data
from pipelines.config.experiment import Experiment, Request, config_paths, override
from pipelines.config.masking import Masking
from pipelines.config.model import Model
from pipelines.config.sections import FewShot, Optimizer, Schedule, Train

__all__ = [
    "Data",
    "Experiment",
    "FewShot",
    "Masking",
    "Model",
    "Optimizer",
    "Request",
    "Schedule",
    "Train",
    "config_paths",
    "override",
]
