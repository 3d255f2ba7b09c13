"""The commands that look at the environment and at config files: `doctor`, `lint` and `schema`."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from typing import Any

from paceline.cli.running import add_timeout, file_name
from paceline.errors import FAILED, OK


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    _add_doctor(commands)
    _add_lint(commands)
    _add_schema(commands)


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this environment", description="Check this environment.")
    doctor.add_argument(
        "--address", metavar="A", help="also look at every node of the Ray cluster at this address, and between them"
    )
    doctor.add_argument(
        "--storage", metavar="PATH", help="what holds the runs: a folder that all nodes must share, or an address"
    )
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.set_defaults(command=_doctor)


def _add_lint(commands: Any) -> None:
    text = (
        "Look for faults of the model and the config that slow training down or break it, without training: the model "
        "runs on stand-ins for tensors. Exit code 1: there is one that breaks it."
    )
    lint = commands.add_parser("lint", help="look for faults of a model and its config", description=text)
    lint.add_argument("config", metavar="CONFIG", type=file_name, help="YAML file of the experiment")
    lint.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="change a field, such as trainer.precision=bf16-mixed (value as in YAML)",
    )
    add_timeout(lint)
    lint.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    lint.set_defaults(command=_lint, refuse=lint.error)


def _add_schema(commands: Any) -> None:
    schema = commands.add_parser(
        "schema", help="print the config's JSON Schema", description="Print the JSON Schema of config files."
    )
    schema.set_defaults(command=_schema)


def _doctor(options: argparse.Namespace) -> int:
    from paceline.cli.reviewing import store_of
    from paceline.display import print_checks
    from paceline.doctor import diagnose

    checks = diagnose(address=options.address, uri=store_of(None), storage=options.storage)
    if options.address not in (None, "local") and any(check.name == "ray cluster" and check.ok for check in checks):
        checks += _nodes(options.address, options.storage or "")
    return print_checks(checks, options.json)


def _nodes(address: str, storage: str) -> list[Any]:
    from paceline.cluster.examination import examine

    with redirect_stdout(sys.stderr):  # where only the checks belong
        return list(examine(address, storage))


def _lint(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.study.lint.apart import lint_apart
    from paceline.study.lint.display import lines
    from paceline.tracking.redact import learn, redact_tree, secrets_of

    config = load_config(options.config, options.overrides)
    learn(secrets_of(config))
    findings = lint_apart(config, options.timeout)
    if options.json:
        print(json.dumps({"findings": [redact_tree(finding.to_json()) for finding in findings]}))
    else:
        print("\n".join(lines(findings)))
    return FAILED if any(finding.severity == "error" for finding in findings) else OK


def _schema(options: argparse.Namespace) -> int:
    from paceline.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
