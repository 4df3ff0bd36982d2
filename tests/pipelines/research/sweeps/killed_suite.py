"""A suite whose data and trainings are replaced by quick ones, in a process that tests kill.

Usage: python -m tests.pipelines.research.sweeps.killed_suite PATH SECONDS

Each training takes some seconds.
"""

import sys
import time

from pipelines.data.sources import subset
from pipelines.research.lab import lab, unit
from pipelines.research.sweeps import suite, suite_plan
from tests.pipelines.research.sweeps import suites
from tests.pipelines.tiny import one_device


def main(path, seconds):
    trainings = suites.Trainings(path, suites.of_vtab)

    def train(experiment, workdir, strategy, reuse=None):
        del reuse
        time.sleep(seconds)
        return trainings(experiment, workdir, strategy)

    subset.open_split = suite_plan.open_split = suites.open_as_source
    unit.train, lab._POLL = train, 0.05
    plan = suites.plan_of("vtab", init_from=suites.L16, seeds=1)
    suite.run(plan, path, one_device())


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
