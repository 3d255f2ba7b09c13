"""The commands that use a trained model on data: `evaluate` and `predict`."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

from paceline.cli.reviewing import RUN_HELP, STORAGE_HELP
from paceline.cli.running import add_wait
from paceline.errors import OK

SET_HELP = "validation (default), test, training, or the name of a validation set"


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    _add_evaluate(commands)
    _add_predict(commands)


def _add_evaluate(commands: Any) -> None:
    text = (
        "Compute the metrics of a run's checkpoint, as training does. On the validation sets they equal the run's own. "
        "Nothing is recorded, and the run's folder stays as it is."
    )
    evaluate = commands.add_parser("evaluate", help="compute the metrics of a trained model", description=text)
    _add_run(evaluate)
    evaluate.add_argument(
        "--set", dest="sets", metavar="NAME", action="append", default=[], help=f"{SET_HELP}; may be repeated"
    )
    evaluate.set_defaults(command=_evaluate, refuse=evaluate.error)


def _add_predict(commands: Any) -> None:
    text = (
        "Write the predictions of a run's checkpoint for every sample of a set, in the order of the set. The file is "
        "there only once it is complete."
    )
    predict = commands.add_parser("predict", help="write the predictions of a trained model", description=text)
    _add_run(predict)
    predict.add_argument("--output", metavar="FILE", required=True, help="file to write: .safetensors or .parquet")
    predict.add_argument("--set", dest="set", metavar="NAME", default="validation", help=SET_HELP)
    predict.set_defaults(command=_predict, refuse=predict.error)


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help=f"{RUN_HELP}; of a sweep, its best trial")
    command.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="change a field of the run's config, such as data.args.folder=new (value as in YAML)",
    )
    command.add_argument(
        "--checkpoint",
        metavar="PLACE",
        default="last",
        help="last (default), best (by checkpoint.monitor), step-N, or a checkpoint's folder or address",
    )
    command.add_argument("--storage", metavar="FOLDER", help=STORAGE_HELP)
    command.add_argument("--trust", action="store_true", help="call the code that a config from elsewhere names")
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.add_argument("--address", metavar="A", help="address of a Ray cluster; default: a private local Ray")
    add_wait(command)


def _evaluate(options: argparse.Namespace) -> int:
    from paceline.review.evaluation import evaluate

    sets = options.sets or ["validation"]
    return _show(options, lambda given: evaluate(options.run, sets, given, options.storage, options.trust))


def _predict(options: argparse.Namespace) -> int:
    from paceline.review.evaluation import predict

    named = options.run, options.set, options.output
    return _show(options, lambda given: predict(*named, given, options.storage, options.trust))


def _show(options: argparse.Namespace, work: Callable[[Any], Any]) -> int:
    """Do something with the options of an evaluation, and print its result."""
    from paceline.display import open_display

    # the user's code may print, and on stdout only the result belongs
    with open_display("evaluation") as display, redirect_stdout(sys.stderr):
        result = work(_options_of(options, display.listener))
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    return OK


def _options_of(options: argparse.Namespace, listener: Any) -> Any:
    from paceline.cluster.evaluation import EvaluationOptions

    return EvaluationOptions(
        checkpoint=options.checkpoint,
        overrides=options.overrides,
        address=options.address,
        wait_seconds=options.wait,
        listener=listener,
    )
