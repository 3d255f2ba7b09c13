"""Secrets stay hidden where text is escaped, cut or handed on: in notes, command lines and reasons."""

import json
import sys

import pytest
import yaml

from paceline.cluster.experiment import closing_status
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.sweeps.results.labels import LONGEST_VALUE as LONGEST_LABEL
from paceline.sweeps.results.labels import value_text
from paceline.tracking import metrics, secret_values
from paceline.tracking.note import code, escaped, summary
from paceline.tracking.note_parts import LONGEST_VALUE, changes_part
from paceline.tracking.provenance import command_line, launch_tags
from paceline.tracking.record import clean_tags
from paceline.tracking.redact import learn, redact, redact_tree, secrets_of
from paceline.tracking.sweep_note import Objective, TrialRow, sweep_note

SECRET = "sk_live_abc<def&gh"
PARTS = ("live", "abc", "gh")


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_values, "_learned", set())


def is_hidden(text: str) -> bool:
    return not any(part in text for part in PARTS) and "\\*\\*\\*" in text.replace("***", r"\*\*\*")


def test_secrets_are_hidden_before_text_is_escaped() -> None:
    shown = clean_tags({"note": escaped(f"model.args.api_key={SECRET}"), "block": code(f"api_key='{SECRET} ```'")})
    assert is_hidden(shown["note"])
    assert is_hidden(shown["block"])
    assert r"model.args.api\_key" in shown["note"]


def test_a_runs_note_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    tags = {metrics.COMMAND: f"own.py {SECRET}"}
    assert is_hidden(summary(f"named {SECRET}", {}, "FAILED", f"no login with {SECRET}", tags))


@pytest.mark.parametrize("length", [LONGEST_VALUE - 10, 150, 190])
def test_a_secret_is_hidden_before_text_is_cut(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    text = f"{'x' * length} {SECRET} and more {'y' * 200}"
    row = TrialRow("0001", {"source": text}, "failed", reason=text)
    changes = {"source": (text, text), text: ("1", "2")}
    notes = [
        sweep_note(text, "failed", text, [Objective("loss", "min")], [row], command=text, changes=changes),
        changes_part(changes),
    ]
    assert not [note for note in notes if any(part in note for part in PARTS)]


def test_a_sweeps_note_knows_secrets_by_their_key_and_tells_their_settings_apart() -> None:
    secrets = ["one_live_two three", "gh_live_two three"]
    rows = [
        TrialRow(
            str(place), {"model.args.api_key": secret, "model.args.more": {"token": secret}, "lr": 0.1}, "finished"
        )
        for place, secret in enumerate(secrets)
    ]
    changes = {"model.args.api_key": (secrets[0], secrets[1])}
    note = sweep_note("n", "finished", None, [Objective("loss", "min")], rows, changes=changes)
    assert not [word for word in ("live", "three") if word in note]
    assert note.count("lr=0.1") == len(rows)
    assert "model.args.api_key: ***  # was ***" in note


def test_the_value_of_an_option_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["/home/me/own.py", "--api-key", SECRET, "--password", "one two three", "--epochs", "3", "a b.yaml"]
    monkeypatch.setattr(sys, "argv", given)
    command = command_line(sys.argv)
    assert command == "own.py --api-key '***' --password '***' --epochs 3 'a b.yaml'"
    tags = launch_tags(command)
    assert (tags[metrics.COMMAND], tags[metrics.SOURCE_NAME]) == (command, command)


def test_the_reason_that_a_worker_gives_is_cleared_of_this_machines_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    failed = {"status": "failed", "failure": {"reason": f"ValueError: no login with {SECRET}"}}
    assert closing_status(failed) == ("FAILED", "ValueError: no login with ***")


def own_config(args: dict[str, object]) -> ExperimentConfig:
    return validate({"name": "own", "model": {"path": "own:net", "args": args}, "data": {"name": "mnist5k"}})


@pytest.mark.parametrize(
    ("args", "secrets"),
    [
        ({"githubToken": "camel-1234"}, ["camel-1234"]),
        ({"passphrase": f"correct horse {'battery staple ' * 8}at the end"}, ["correct horse", "at the end"]),
        ({"secret": "first line of it\nsecond line of it"}, ["first line", "second line"]),
        ({"db": {"password": "pa\"ss X and'x"}}, ["ss X and"]),
        ({"credentials": {"user": "joe", "more": {"deep": "below-1234"}}}, ["below-1234"]),
        ({"api_keys": ["one-12345", "two-12345"], "encryption_key": "three-12345", "auth": "four-12345"}, ["-12345"]),
        ({"source": "https://host/x?sv=1&sig=signed%2F1234"}, ["signed", "1234"]),
    ],
)
def test_secrets_of_a_config_are_hidden_however_it_is_written(args: dict[str, object], secrets: list[str]) -> None:
    config = own_config(args)
    params = redact_tree(args)
    learn(secrets_of(config))
    tree = config.model_dump(mode="json")
    texts = [
        json.dumps(params),
        yaml.safe_dump(tree),
        yaml.dump(tree, width=40),
        repr(tree),
        json.dumps(tree),
        str(args),
    ]
    shown = [redact(text) for text in texts]
    assert not [(text, secret) for text in shown for secret in secrets if secret in text]
    assert "joe" not in str(args) or "joe" in shown[0]


def test_what_only_sounds_like_a_secret_is_left() -> None:
    args = {"special_tokens": ["<|endoftext|>", "<|padding|>"], "sort_key": "alphabetical", "bypass": "sometimes"}
    assert redact_tree(args) == args
    config = own_config(args)
    assert not set(secrets_of(config)) & {"<|endoftext|>", "alphabetical", "sometimes"}


def test_an_axis_value_is_hidden_before_it_is_cut() -> None:
    source = "s3://me:long-and-secret@host/a/folder/with/a/long/name/that/does/not/fit"
    assert value_text(source).startswith("s3://***@host/")
    assert len(value_text(source)) <= LONGEST_LABEL
