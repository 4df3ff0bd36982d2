"""The command `launch` with stand-ins as workers.

usage: python -m tests.pipelines.programs.launched FOLDER PLAN [flags of launch]
"""

import sys

from pipelines import launch
from pipelines.cli import command


def _stand_ins(arguments):
    return [sys.executable, "-m", "tests.pipelines.programs.stand_in", *arguments]


if __name__ == "__main__":
    folder, plan, *flags = sys.argv[1:]
    launch._worker_command = _stand_ins
    sys.argv = ["launch", *flags, "--", folder, plan]
    command.run(
        launch.main,
        launch.DESCRIPTION,
        launch.define,
        launch.POSITIONAL,
        check_ops=launch.CHECK_OPS,
        shared_flags=launch.SHARED_FLAGS,
    )
