"""Commands and the code behind them: pre-train, fine-tune, evaluate, predict, export."""

import sys

# While Python looks for the module of `python -m pipelines.<name>`.
if sys.argv[:1] == ["-m"] and "-m" in sys.orig_argv:
    from pipelines.cli.command_names import wrong_command

    if message := wrong_command(sys.orig_argv[sys.orig_argv.index("-m") + 1]):
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
