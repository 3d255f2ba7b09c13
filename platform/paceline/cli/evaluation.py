"""Options and output that `evaluate` and `predict` share."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from paceline.cli.options import RUN_HELP, STORAGE_HELP, add_cluster, add_json, add_overrides
from paceline.errors import OK

SET_HELP = "validation (default), test, training, or the name of a validation set"


def add_run(command: argparse.ArgumentParser) -> None:
    """Add the run, its checkpoint, and changes of its config."""
    command.add_argument("run", metavar="RUN", help=f"{RUN_HELP}; of a sweep, its best trial")
    add_overrides(command, "change a field of the run's config, such as data.args.folder=new (value as in YAML)")
    command.add_argument(
        "--checkpoint",
        metavar="PLACE",
        default="last",
        help="last (default), best (by checkpoint.monitor), step-N, or a checkpoint's folder or address",
    )
    command.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    command.add_argument("--trust", action="store_true", help="call the code that a config from elsewhere names")
    add_json(command)
    add_cluster(command)


def show(options: argparse.Namespace, work: Callable[[Any], Any]) -> int:
    """Call `work` with the options of an evaluation, and print its result."""
    from paceline.cluster.evaluation import EvaluationOptions
    from paceline.display import open_display

    # the user's code may print, and on stdout only the result belongs
    with open_display("evaluation", options.quiet, options.verbose) as display, redirect_stdout(sys.stderr):
        result = work(
            EvaluationOptions(
                checkpoint=options.checkpoint,
                overrides=options.overrides,
                address=options.address,
                wait_seconds=options.wait_for_resources,
                listener=display.listener,
            )
        )
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    return OK
