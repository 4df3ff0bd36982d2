"""Measures which faults in the product the tests find.

Each fault is one replacement in a copy of a checkout. The tests that `tests/changed.py` selects for
the changed file run on the copy, the fastest files first, until the first failure or for 90
seconds after the build. A fault that no test finds until then survives. Results are kept in
`build/mutants`: another run continues, until a file of the checkout changes.
"""

import argparse
import pathlib
import shlex
import sys

from tests.mutants.faults_cpp import CPP
from tests.mutants.faults_python import PYTHON
from tests.mutants.report import report
from tests.mutants.run import ERROR, Settings, run_all

ROOT = pathlib.Path(__file__).parents[2]


def main():
    """Prints a line for each fault, then the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="faults whose path or kind has it"
    )
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time; 1 by default")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="another checkout")
    parser.add_argument("--seconds", type=float, default=90, help="for the tests of a fault")
    parser.add_argument(
        "--pytest_args",
        default="--heavy all -m 'not peers and not release and not slurm'",
        help="for a checkout with other options than this one",
    )
    flags = parser.parse_args()
    root = flags.root.resolve()
    faults = [fault for fault in (*PYTHON, *CPP) if flags.only in str(fault)]
    if problems := [problem for fault in faults if (problem := fault.problem(root))]:
        sys.exit("\n".join(problems))
    settings = Settings(
        root=root, seconds=flags.seconds, arguments=tuple(shlex.split(flags.pytest_args))
    )
    results = run_all(
        faults,
        settings,
        ROOT / "build" / "mutants",
        flags.jobs,
        lambda line: print(line, flush=True),
    )
    print(report(results))
    sys.exit(any(result.outcome == ERROR for result in results.values()))


if __name__ == "__main__":
    main()
