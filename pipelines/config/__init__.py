"""Configuration of a run: experiments, fields, overrides and recipes. Loads no framework."""

from pipelines.config.data import Data
from pipelines.config.experiment import Assignments, Experiment, Request, config_paths, override
from pipelines.config.few_shot import FewShot
from pipelines.config.masking import Masking
from pipelines.config.model import Model
from pipelines.config.optimizer import Optimizer
from pipelines.config.schedule import Schedule
from pipelines.config.train import Train

__all__ = [
    "Assignments",
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
