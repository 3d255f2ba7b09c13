"""The command line. It calls the public functions and nothing else; what it imports at the top must stay light."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

from paceline.errors import BAD_CONFIG, FAILED, INTERRUPTED, OK, TRIALS_FAILED, ConfigError, PacelineError, RunFailed


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    0: ok, 1: failed, 2: config, 3: environment, 4: trials of a sweep failed, 130: interrupted.
    """
    # a thread of Ray's that is left when this process ends must not connect to somebody else's cluster
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    options = parse(arguments)
    try:
        return int(options.command(options))
    except PacelineError as error:
        return _report(error, getattr(options, "json", False))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return FAILED


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command and its options; overrides may stand before, between and after the flags.

    Raises:
        SystemExit: the command line is wrong; with code 2, once the reason has been printed.
    """
    parser = build_parser()
    options, rest = parser.parse_known_args(list(arguments))
    overrides = [argument for argument in rest if "=" in argument and not argument.startswith("-")]
    unknown = [argument for argument in rest if argument not in overrides]
    takes_overrides = hasattr(options, "overrides")
    if unknown and takes_overrides:
        options.refuse(_about_unknown(unknown))
    if rest and not takes_overrides:
        parser.error(_unrecognized(unknown or overrides))
    if overrides:
        options.overrides = [*options.overrides, *overrides]
    return options


def _about_unknown(arguments: Sequence[str]) -> str:
    """What is wrong with arguments of a command that takes overrides: no flags of it, and no `key.path=value`."""
    if not any(argument.startswith("-") for argument in arguments):
        return f"{' '.join(arguments)}: write key.path=value"
    return f"{_unrecognized(arguments)} (fields are set as key.path=value, such as trainer.epochs=3)"


def _unrecognized(arguments: Sequence[str]) -> str:
    return f"unrecognized arguments: {' '.join(arguments)}"


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(prog="paceline", description=__import__("paceline").__doc__)
    parser.add_argument("--version", action="version", version=f"paceline {__import__('paceline').__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_sweep(commands)
    _add_doctor(commands)
    _add_ui(commands)
    _add_schema(commands)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="run one experiment", description="Run one experiment.")
    _add_config(train)
    train.add_argument("--dry-run", action="store_true", help="check the config, print what follows from it, and stop")
    train.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="auto: go on with the newest unfinished run of this name (default); never: start a new one",
    )
    train.add_argument("--fork", action="store_true", help="branch off an unfinished run whose config differs")
    train.set_defaults(command=_train, refuse=train.error)


def _add_sweep(commands: Any) -> None:
    text = (
        "Run the trials of the config's sweep section. An unfinished sweep of the same name and config is gone on with."
    )
    sweep = commands.add_parser("sweep", help="run many trials of one experiment", description=text)
    _add_config(sweep)
    sweep.add_argument(
        "--dry-run", action="store_true", help="check all points, print them and what they cost, and stop"
    )
    which = sweep.add_mutually_exclusive_group()
    which.add_argument("--resume", action="store_true", help="start no new sweep: only go on with an unfinished one")
    which.add_argument("--new", action="store_true", help="start a new sweep, even if there is an unfinished one")
    sweep.set_defaults(command=_sweep, refuse=sweep.error)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", type=_file_name, help="YAML file of the experiment")
    command.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="change a field, such as trainer.epochs=2 (value as in YAML)",
    )
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.add_argument("--address", metavar="A", help="address of a Ray cluster; default: a private local Ray")


def _file_name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: give the path of a YAML file")
    return text


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this environment", description="Check this environment.")
    doctor.add_argument("--address", metavar="A", help="also look at the Ray cluster at this address")
    doctor.add_argument("--json", action="store_true", help="print the checks as JSON")
    doctor.set_defaults(command=_doctor)


def _add_ui(commands: Any) -> None:
    ui = commands.add_parser("ui", help="review runs in MLflow", description="Serve MLflow's UI on this folder's runs.")
    ui.add_argument("--uri", metavar="URI", help="MLflow store; default: the one that runs in this folder use")
    ui.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1 (default 5000, or the next free one)")
    ui.set_defaults(command=_ui)


def _add_schema(commands: Any) -> None:
    schema = commands.add_parser(
        "schema", help="print the config's JSON Schema", description="Print the JSON Schema of config files."
    )
    schema.set_defaults(command=_schema)


def _train(options: argparse.Namespace) -> int:
    from paceline.config import load_config

    config = load_config(options.config, options.overrides)
    if options.dry_run:
        return _dry_run(config, options.json)
    from paceline.cluster.experiment import train
    from paceline.display import open_display

    with open_display(f"{config.name}") as display:
        result = train(
            config, resume=options.resume, fork=options.fork, address=options.address, listener=display.listener
        )
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    return INTERRUPTED if result.status == "interrupted" else OK


def _sweep(options: argparse.Namespace) -> int:
    from paceline.config import load_config
    from paceline.config.loading import placing

    config = load_config(options.config, options.overrides)
    with placing(options.config, options.overrides):
        return _sweep_of(config, options)


def _sweep_of(config: Any, options: argparse.Namespace) -> int:
    if options.dry_run:
        from paceline.sweeps.planning.dry_run import dry_run

        return dry_run(config, options.json, options.address, options.new)
    from paceline.sweeps.display import open_sweep_display
    from paceline.sweeps.sweep import section_of, sweep, trial_count

    section = section_of(config)
    with open_sweep_display(section.objectives, config.name, trial_count(section)) as display:
        result = sweep(
            config, resume=options.resume, new=options.new, address=options.address, listener=display.listener
        )
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        display.print_result(result.rows())
    if result.status == "interrupted":
        return INTERRUPTED
    return TRIALS_FAILED if result.failed else OK


def _dry_run(config: Any, as_json: bool) -> int:
    from paceline.cluster.preflight import storage_folder
    from paceline.config.derived import derive
    from paceline.config.loading import dump_yaml
    from paceline.tracking.redact import shareable

    storage_folder(config)
    derived = derive(config, config.data.sizes())
    shown = shareable(config)
    if as_json:
        print(json.dumps({"config": shown.model_dump(mode="json"), "derived": asdict(derived)}))
        return OK
    print(dump_yaml(shown))
    for label, text in derived.lines():
        print(f"# {label}: {text}")
    return OK


def _doctor(options: argparse.Namespace) -> int:
    from paceline.display import print_checks
    from paceline.doctor import diagnose

    return print_checks(diagnose(address=options.address, uri=_tracking_uri(None)), options.json)


def _ui(options: argparse.Namespace) -> int:
    from paceline.tracking.server import ui

    return ui(_tracking_uri(options.uri), options.port)


def _tracking_uri(uri: str | None) -> str:
    """The store that runs of this folder use, unless another is named."""
    from pathlib import Path

    from paceline.config.sections import TrackingConfig
    from paceline.tracking.store import tracking_uri

    return tracking_uri(TrackingConfig(uri=uri), Path.cwd())


def _schema(options: argparse.Namespace) -> int:
    from paceline.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK


def _report(error: PacelineError, as_json: bool) -> int:
    """Tell an error without a traceback of ours: every problem of a config, or the failing rank's own traceback.

    Secrets are hidden: a problem names the override that it is about, an exception what it was called with.
    """
    from paceline.tracking.redact import redact

    if isinstance(error, ConfigError):
        for problem in error.problems:
            texts = {name: redact(getattr(problem, name)) for name in ("reason", "place", "hint")}
            print(replace(problem, **texts), file=sys.stderr)
    else:
        if isinstance(error, RunFailed) and error.traceback_text:
            print(redact(error.traceback_text), file=sys.stderr)
        print(f"error: {redact(str(error))}", file=sys.stderr)
    if as_json and error.exit_code != BAD_CONFIG:
        print(json.dumps({"status": "failed", "error": redact(str(error)), "exit_code": error.exit_code}))
    return error.exit_code


if __name__ == "__main__":
    main()
