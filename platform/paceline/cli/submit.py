"""`paceline submit`: run a config as a job on a Ray cluster."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paceline.cli.options import (
    EXTEND_RUN,
    EXTEND_SWEEP,
    add_config,
    add_init_from,
    add_intent,
    add_json,
    add_wait,
    overrides_of,
    refuse_init_from_with_extend,
)
from paceline.errors import OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = (
        "Run a config as a job on a Ray cluster. The working folder and this package are uploaded, the driver's log is "
        "shown, and its exit code is that of this command. Ctrl-C stops the job, with its state saved."
    )
    submit = commands.add_parser("submit", help="run a config as a job on a cluster", description=text)
    add_config(submit, optional=True)
    submit.add_argument(
        "--job",
        choices=("train", "sweep", "scale", "tuneup"),
        help="default: sweep, scale or tuneup, when the config has such a section",
    )
    submit.add_argument(
        "--address",
        metavar="A",
        help="address of the cluster's dashboard; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else "
        "http://127.0.0.1:8265",
    )
    submit.add_argument(
        "--runtime-env",
        metavar="FILE",
        type=Path,
        help="pip, env_vars, excludes and the like (default: configs/deploy/runtime_env.yaml, if it exists)",
    )
    add_intent(submit, "run", fork=True, extend=f"{EXTEND_RUN}; of a sweep, {EXTEND_SWEEP}")
    add_init_from(submit)
    add_wait(submit)
    submit.add_argument("--dry-run", action="store_true", help="check everything, print what would be sent, and stop")
    submit.add_argument("--detach", action="store_true", help="print the job's id, and leave the job running")
    submit.add_argument(
        "--follow",
        metavar="JOB",
        help="follow a job that was submitted before, in place of CONFIG; Ctrl-C leaves it running",
    )
    add_json(submit)
    submit.set_defaults(command=_submit)


def _submit(options: argparse.Namespace) -> int:
    if options.follow is not None:
        return _follow(options)
    if options.config is None:
        options.refuse("give CONFIG, the YAML file of an experiment, or --follow JOB")
    refuse_init_from_with_extend(options)
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
    from paceline.cluster.submission import submit

    end = submit(plan, options.address, not options.detach, _writer(options), hides_result=options.json)
    if options.json:
        print(json.dumps(end.to_json()))
    elif options.detach:
        print(end.job_id)
    return end.exit_code


def _follow(options: argparse.Namespace) -> int:
    names = ("config", "job", "runtime_env", "resume", "new", "fork", "extend", "init_from", "dry_run", "detach")
    if given := [name for name in names if getattr(options, name)]:
        shown = "CONFIG" if given[0] == "config" else f"--{given[0].replace('_', '-')}"
        options.refuse(f"argument --follow: not allowed with {shown}")
    from paceline.cluster.submission import follow

    end = follow(options.follow, options.address, _writer(options), hides_result=options.json)
    if options.json:
        print(json.dumps(end.to_json()))
    return end.exit_code


def _show(plan: Any, options: argparse.Namespace) -> int:
    from paceline.cluster.job_client import job_address
    from paceline.display import print_rows
    from paceline.redaction import redact

    address = redact(job_address(options.address))
    if options.json:
        print(json.dumps({"job_id": plan.new_id(), "address": address, **plan.to_json()}))
    else:
        print_rows([("job", plan.new_id()), ("address", f"{address} (not contacted)"), *plan.rows()])
    return OK


def _check_sweep(config: Any) -> None:
    from paceline.sweeps.planning.planned_trials import plan_trials  # takes a moment to import

    plan_trials(config)


def _flags(options: argparse.Namespace, kind: str) -> list[str]:
    """Return the options that the driver gets.

    Raises:
        SystemExit: the job's command does not have them.
    """
    if kind != "train" and options.fork:
        options.refuse(f"--fork is for train, and this job is a {kind}")
    if kind in ("scale", "tuneup") and options.extend:
        options.refuse(f"--extend is for train and sweep, and this job is a {kind}")
    names = ("resume", "new", "fork", "extend", "json", "verbose", "quiet")
    wait = [f"--wait-for-resources={options.wait_for_resources:g}"] if options.wait_for_resources else []
    return [*wait, *(f"--{name}" for name in names if getattr(options, name))]


def _writer(options: argparse.Namespace) -> Any:
    """Return where the log goes: stdout, or with `--json`, where only the result belongs there, stderr."""
    return sys.stderr.write if options.json else None
