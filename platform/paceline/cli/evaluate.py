"""`paceline evaluate`: compute the metrics of a trained model."""

import argparse
from typing import Any

from paceline.cli.evaluation import SET_HELP, add_run, show


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Compute the metrics of a run's checkpoint, as training does. On the validation sets they equal the run's own. "
        "Nothing is recorded, and the run's folder stays as it is."
    )
    evaluate = commands.add_parser("evaluate", help="compute the metrics of a trained model", description=text)
    add_run(evaluate)
    text = f"{SET_HELP}; may be repeated"
    evaluate.add_argument("--set", dest="sets", metavar="NAME", action="append", default=[], help=text)
    evaluate.set_defaults(command=_evaluate)


def _evaluate(options: argparse.Namespace) -> int:
    from paceline.runs.evaluation import evaluate_found

    sets = options.sets or ["validation"]
    return show(options, lambda given: evaluate_found(options.run, sets, given, options.storage, options.trust))
