"""Reports the installed parts, whether they work, and how to repair them."""

from pipelines.cli import command, shared_flags
from pipelines.distribution import onednn

DESCRIPTION = """Examines this installation: versions, processor, devices, compiler, compiled ops.

The compiled ops are compared with the reference, and the shipped model is loaded. The exit code is
0 if everything can be used, and 1 if something is broken. --workdir is the directory for runs,
by default runs.

example: python -m pipelines.doctor --json
"""

SHARED_FLAGS = ("workdir",)

# A wrong VIT_OPS or VIT_ISA ends the command after the report, which explains the problem.
CHECK_OPS = False


def define(values):
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    from pipelines.cli.doctor import examination
    from pipelines.errors import RunError

    onednn.choose()
    report = examination.examine(values.workdir or "runs")
    if values.json:
        shared_flags.print_json(report.facts | {"broken": report.broken, "hints": report.hints})
    else:
        print(examination.format_report(report))
    if report.facts["imports"]["tensorflow"] is True:
        command.check_implementation()
    if report.broken:
        raise RunError(report.broken[0])


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, check_ops=CHECK_OPS, shared_flags=SHARED_FLAGS)
