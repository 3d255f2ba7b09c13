"""The command that sends a config to a cluster: `submit`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paceline.cli.running import add_init_from, add_wait, file_name, overrides_of
from paceline.errors import OK

_RESUME_CHOICES = ("auto", "never")
_ONLY = "only"
"""`--resume` without a value, as `paceline sweep` and `paceline tuneup` take it."""


def add_commands(commands: Any) -> None:
    """Add them to the parser."""
    text = (
        "Run a config as a job on a Ray cluster: the working folder and this package travel, the driver's log is "
        "shown, and its exit code is that of this command. Ctrl-C leaves the job running."
    )
    submit = commands.add_parser("submit", help="run a config as a job on a cluster", description=text)
    submit.add_argument("config", metavar="CONFIG", type=file_name, nargs="?", help="YAML file of the experiment")
    submit.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="change a field, such as trainer.epochs=2"
    )
    submit.add_argument(
        "--job",
        choices=("train", "sweep", "tuneup"),
        help="default: sweep or tuneup, when the config has such a section",
    )
    submit.add_argument(
        "--address",
        metavar="A",
        help="the cluster's dashboard; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265",
    )
    submit.add_argument(
        "--runtime-env",
        metavar="FILE",
        type=Path,
        help="pip, env_vars, excludes and the like (default: configs/runtime_env.yaml, where it is there)",
    )
    _add_of_jobs(submit)
    submit.add_argument("--dry-run", action="store_true", help="check all here, print what would be sent, and stop")
    submit.add_argument("--no-wait", action="store_true", help="print the job's id, and do not follow its log")
    submit.add_argument("--follow", metavar="JOB", help="follow a job that was submitted before, in place of CONFIG")
    submit.add_argument("--json", action="store_true", help="print how the job ended as one JSON object; log to stderr")
    submit.set_defaults(command=_submit, refuse=submit.error)


def _add_of_jobs(submit: argparse.ArgumentParser) -> None:
    submit.add_argument(
        "--resume",
        nargs="?",
        const=_ONLY,
        metavar="auto|never",
        help="train: auto or never, see `paceline train`; sweep and tuneup: without a value, see there",
    )
    submit.add_argument("--fork", action="store_true", help="train: branch off an unfinished run whose config differs")
    submit.add_argument("--extend", action="store_true", help="train: train the newest finished run further")
    add_init_from(submit)
    submit.add_argument("--new", action="store_true", help="sweep, tuneup: start a new one, even if one is unfinished")
    add_wait(submit)


def _submit(options: argparse.Namespace) -> int:
    _give_back(options)
    if options.follow is not None:
        return _follow(options)
    if options.config is None:
        options.refuse("give CONFIG, the YAML file of an experiment, or --follow JOB")
    from paceline.cluster.job_plan import plan_job

    plan = plan_job(
        options.config,
        overrides_of(options),
        options.job,
        lambda kind: _flags(options, kind),
        options.runtime_env,
        _check_sweep,
    )
    if options.dry_run:
        return _show(plan, options)
    from paceline.cluster.submission import submit_plan

    end = submit_plan(plan, options.address, not options.no_wait, _writer(options))
    if options.json:
        print(json.dumps(end.to_json()))
    elif options.no_wait:
        print(end.job_id)
    return end.exit_code


def _follow(options: argparse.Namespace) -> int:
    if options.config is not None or options.dry_run or options.no_wait:
        options.refuse("--follow takes neither CONFIG nor --dry-run nor --no-wait")
    from paceline.cluster.submission import follow

    end = follow(options.follow, options.address, _writer(options))
    if options.json:
        print(json.dumps(end.to_json()))
    return end.exit_code


def _show(plan: Any, options: argparse.Namespace) -> int:
    from paceline.cluster.job_client import job_address
    from paceline.display import print_rows
    from paceline.tracking.redact import redact

    address = redact(job_address(options.address))
    if options.json:
        print(json.dumps({"job_id": plan.new_id(), "address": address, **plan.to_json()}))
    else:
        print_rows([("job", plan.new_id()), ("address", f"{address} (not asked)"), *plan.rows()])
    return OK


def _check_sweep(config: Any) -> None:
    from paceline.sweeps.planning.points import make_points  # takes a moment to import

    make_points(config)


def _flags(options: argparse.Namespace, kind: str) -> list[str]:
    """The options that the driver gets.

    Raises:
        SystemExit: they are those of the other command.
    """
    if kind == "train" and (options.new or options.resume == _ONLY):
        options.refuse(
            "for train: --resume auto or never, --fork and --extend; --new and --resume alone are for sweep and tuneup"
        )
    if kind != "train" and (options.fork or options.extend or options.resume in _RESUME_CHOICES):
        cure = "--resume without a value, or --new; --fork, --extend and --resume auto or never are for train"
        options.refuse(f"for {kind}: {cure}")
    if options.extend and (options.fork or options.resume == "never" or options.init_from is not None):
        options.refuse("--extend excludes --fork, --resume never and --init-from")
    if options.new and options.resume:
        options.refuse("--resume and --new exclude each other")
    resume = {None: [], _ONLY: ["--resume"]}.get(options.resume, ["--resume", options.resume])
    chosen = {"--fork": options.fork, "--extend": options.extend, "--new": options.new, "--json": options.json}
    wait = ["--wait", f"{options.wait:g}"] if options.wait else []
    return [*resume, *wait, *(name for name, is_set in chosen.items() if is_set)]


def _give_back(options: argparse.Namespace) -> None:
    """What `--resume` took for its value may be what follows it: CONFIG, or an override."""
    taken = options.resume
    if taken in (None, _ONLY, *_RESUME_CHOICES):
        return
    options.resume = _ONLY
    if "=" in taken and options.config is not None:
        options.overrides = [*options.overrides, taken]
        return
    if options.config is not None:
        options.overrides = [options.config, *options.overrides]
    options.config = taken


def _writer(options: argparse.Namespace) -> Any:
    """Where the log goes: to stdout, but for `--json`, where only the result belongs there."""
    return sys.stderr.write if options.json else None
