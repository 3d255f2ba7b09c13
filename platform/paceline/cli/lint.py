"""`paceline lint`: find faults of a model and its config without training."""

import argparse
import json
from typing import Any

from paceline.cli.options import add_config, add_json, add_timeout
from paceline.errors import FAILED, OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Find faults of the model and the config that slow training down or break it, without training: the model "
        "runs on fake tensors. Exit code 1: at least one finding is an error, which breaks training."
    )
    lint = commands.add_parser("lint", help="find faults of a model and its config", description=text)
    add_config(lint, "trainer.precision=bf16-mixed")
    add_timeout(lint)
    add_json(lint)
    lint.set_defaults(command=_lint)


def _lint(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.config.shareable import secrets_of
    from paceline.linting.apart import lint
    from paceline.linting.display import lines
    from paceline.redaction import learn, redact_tree

    config = load_config(options.config, options.overrides)
    learn(secrets_of(config))
    findings = lint(config, options.timeout)
    if options.json:
        print(json.dumps({"findings": [redact_tree(finding.to_json()) for finding in findings]}))
    else:
        print("\n".join(lines(findings)))
    return FAILED if any(finding.severity == "error" for finding in findings) else OK
