"""`paceline predict`: write the predictions of a trained model."""

import argparse
from typing import Any

from paceline.cli.evaluation import SET_HELP, add_run, show


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Write the predictions of a run's checkpoint for every sample of a set, in the order of the set. The file "
        "appears only once it is complete."
    )
    predict = commands.add_parser("predict", help="write the predictions of a trained model", description=text)
    add_run(predict)
    predict.add_argument("--output", metavar="FILE", required=True, help="file to write: .safetensors or .parquet")
    predict.add_argument("--set", dest="set", metavar="NAME", default="validation", help=SET_HELP)
    predict.set_defaults(command=_predict)


def _predict(options: argparse.Namespace) -> int:
    from paceline.runs.evaluation import predict_found

    named = options.run, options.set, options.output
    return show(options, lambda given: predict_found(*named, given, options.storage, options.trust))
