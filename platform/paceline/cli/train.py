"""`paceline train`: run one experiment."""

import argparse
import json
import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from typing import Any

from paceline.cli.answer import answering
from paceline.cli.options import (
    EXTEND_RUN,
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
from paceline.errors import INTERRUPTED, OK


def add_command(commands: Any) -> None:
    """Add it to the parser."""
    text = "Run one experiment. An unfinished run of the same name and config is continued."
    train = commands.add_parser("train", help="run one experiment", description=text)
    add_config(train)
    text = "check the config, print it with everything that follows from it, and stop"
    train.add_argument("--dry-run", action="store_true", help=text)
    add_intent(train, "run", fork=True, extend=EXTEND_RUN)
    add_init_from(train)
    add_cluster(train)
    add_json(train)
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> int:
    refuse_init_from_with_extend(options)
    from paceline.config.loading import placing

    config = load(options)
    with placing(options.config, overrides_of(options)):
        return _dry_run(config, options.json) if options.dry_run else _train_with(config, options)


def _train_with(config: Any, options: argparse.Namespace) -> int:
    from paceline.cluster.train import train
    from paceline.display import open_display

    with ExitStack() as shown:
        display = shown.enter_context(open_display(config.name, options.quiet, options.verbose))
        # the user's code may print, and on stdout only the result belongs
        shown.enter_context(redirect_stdout(sys.stderr))
        result = train(
            config,
            resume=options.resume,
            new=options.new,
            fork=options.fork,
            extend=options.extend,
            address=options.address,
            wait_seconds=options.wait_for_resources,
            listener=display.listener,
            on_result=answering(shown, options.json, lambda result: display.print_result(result.rows())),
        )
    return INTERRUPTED if result.status == "interrupted" else OK


def _dry_run(config: Any, as_json: bool) -> int:
    from paceline.cluster.initial_weights import pin_weights
    from paceline.config.derived import derive
    from paceline.config.loading import dump_yaml
    from paceline.config.shareable import secrets_of, shareable
    from paceline.redaction import learn, redact, redact_tree

    check_addresses(config)
    config = pin_weights(config)
    derived = derive(config, config.data.sizes())
    learn(secrets_of(config))
    shown = shareable(config)
    if as_json:
        print(json.dumps({"config": redact_tree(shown.model_dump(mode="json")), "derived": asdict(derived)}))
        return OK
    print(redact(dump_yaml(shown)))
    for label, text in derived.lines():
        print(f"# {label}: {text}")
    return OK
