"""`paceline sweep`: run many trials of one experiment."""

import argparse
from contextlib import ExitStack
from typing import Any

from paceline.cli.answer import answering
from paceline.cli.options import (
    EXTEND_SWEEP,
    add_cluster,
    add_config,
    add_init_from,
    add_intent,
    add_json,
    check_addresses,
    load,
    overrides_of,
    refuse_init_from_with_extend,
)
from paceline.errors import INTERRUPTED, OK, TRIALS_FAILED


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Run the trials of the config's sweep section. An unfinished sweep of the same name and config is continued."
    sweep = commands.add_parser("sweep", help="run many trials of one experiment", description=text)
    add_config(sweep)
    text = "check all trials, print them with their cost, and stop"
    sweep.add_argument("--dry-run", action="store_true", help=text)
    add_intent(sweep, "sweep", extend=EXTEND_SWEEP)
    add_init_from(sweep)
    add_cluster(sweep)
    add_json(sweep)
    sweep.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    refuse_init_from_with_extend(options)
    from paceline.config.loading import placing

    config = load(options)
    with placing(options.config, overrides_of(options)):
        return _dry_run(config, options) if options.dry_run else _sweep_with(config, options)


def _sweep_with(config: Any, options: argparse.Namespace) -> int:
    from paceline.display import print_rows
    from paceline.sweeps.display import open_sweep_display
    from paceline.sweeps.planning.planned_trials import section_of, trial_count
    from paceline.sweeps.sweep import sweep

    section = section_of(config)
    shown = section.objectives, config.name, trial_count(section)
    with ExitStack() as stack:
        listener = stack.enter_context(open_sweep_display(*shown, options.quiet, options.verbose))
        result = sweep(
            config,
            resume=options.resume,
            new=options.new,
            extend=options.extend,
            address=options.address,
            wait_seconds=options.wait_for_resources,
            listener=listener,
            on_result=answering(stack, options.json, lambda result: print_rows(result.rows())),
        )
    if result.status == "interrupted":
        return INTERRUPTED
    return TRIALS_FAILED if result.failed else OK


def _dry_run(config: Any, options: argparse.Namespace) -> int:
    from paceline.cluster.unfinished_runs import intent_of
    from paceline.config.shareable import secrets_of
    from paceline.redaction import learn
    from paceline.sweeps.planning.dry_run import dry_run

    learn(secrets_of(config))
    check_addresses(config)
    intent = intent_of(resume=options.resume, new=options.new, extend=options.extend)
    return dry_run(config, options.json, options.address, intent)
