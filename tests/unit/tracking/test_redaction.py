"""Secrets are recognised by shape, key, address and value, wherever they stand; other text is left; and it is fast."""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.shareable import secrets_of
from paceline.redaction import learn, redact, redact_arguments, redact_bytes, redact_tree, without_credentials
from paceline.sweeps.results.labels import LONGEST_VALUE as LONGEST_LABEL
from paceline.sweeps.results.labels import value_text
from paceline.tracking import metrics
from paceline.tracking.markdown import LONGEST_VALUE, changes_part, code, escaped
from paceline.tracking.provenance import command_line
from paceline.tracking.run_note import summary
from paceline.tracking.run_record import RunRecord, clean_tags
from paceline.tracking.sweep_note import Objective, sweep_note
from paceline.tracking.trials_table import TrialRow

CANARY = "9f2kQz71canary"
MEGABYTE = 1_000_000


def config_of(args: dict[str, object]) -> ExperimentConfig:
    return validate({"name": "n", "model": {"path": "own:net", "args": args}, "data": {"name": "synthetic"}})


# By key, header and address


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('password: "my secret pass phrase", x: 1', 'password: "***", x: 1'),
        ("api_key = 'one two three'  # why", "api_key = '***'  # why"),
        (r'{"password": "a\"b c d e f g", "x": 1}', '{"password": "***", "x": 1}'),
        (r'"{\"api_key\": \"one two three\", \"x\": 1}"', r'"{\"api_key\": \"***\", \"x\": 1}"'),
        ('token: "one two thr', 'token: "***'),
        ("api-key: abcdefgh, API key=abcdefgh; x", "api-key: ***, API key=*** x"),
        ("--api-key=abcdefghij x", "--api-key=*** x"),
        ('{"mlflow_token": "4bcdefgh1j"} after', '{"mlflow_token": "***"} after'),
        ("http://host/x?api_key=abcdefghij&y=1 after", "http://host/x?api_key=***&y=1 after"),
        (f"{'x' * 500}_password=hunter2hunter2 {'y' * 500}", f"{'x' * 500}_password=*** {'y' * 500}"),
        # in addresses, a password may have any characters
        ("at postgresql://me:pa/ss-word9@db/mlflow, again", "at postgresql://***@db/mlflow, again"),
        ("postgresql://me:/pass-word9@db/mlflow?x=1", "postgresql://***@db/mlflow?x=1"),
        ("redis://:12/3-word9@db", "redis://***@db"),
        ("mysql+pymysql://me:p@ss/w?o#rd9@db/mlflow", "mysql+pymysql://***@db/mlflow"),
        ("http://me:pa/ss-word9@host:5000/ml", "http://***@host:5000/ml"),
        ("s3://me:a/b@one/x,s3://me:c/d@two/y", "s3://***@one/x,s3://***@two/y"),
        (r'{"uri": "db://me:a/\"b@h/x", "mail": "a@b.c"}', '{"uri": "db://***@h/x", "mail": "a@b.c"}'),
    ],
)
def test_what_a_key_or_an_address_shows_to_be_a_secret_is_hidden(text: str, hidden: str) -> None:
    assert redact(text) == hidden


@pytest.mark.parametrize(
    "header", ["Authorization: Bearer", "'Authorization': 'Basic", "bearer", "authorization=Token"]
)
def test_a_header_is_hidden(header: str) -> None:
    assert CANARY not in redact(f"sent {header} {CANARY}== and more")


@pytest.mark.parametrize(
    "text",
    [
        "a bearer of good news",
        "sk-learn is here",
        "eyJust.a.word",
        "AKIA",
        "token_file: ./tokens of mine",
        "secret: 'short'",
        'password: ""',
        "its tokens: 'a b c d e'",
        "num_tokens: 50257 is much",
        "tokenizer: gpt2-medium",
        "uri: postgresql://host/db?password=\nexperiment: long-enough-to-be-one\n",
        "http://host:5000/a@b",
        "see http://host:5000 or me@host.org: it is https://host/@me/x",
        "http://[::1]:5000/a@b",
        '{"uri":"redis://host:6379/0","mail":"a@b.c"}',
        "sqlite:////a:b/c@d/mlflow.db",
        "git+https://host/lib.git@v1:2",
        "token = self.tokenizer.next_token(x)\n",
        "pad_token=tokenizer.eos_token)\n",
        "predicted token: attention.\n",
        "token: tokens[position + 1]",
        "<td>pad_token: &lt;|endoftext|&gt;</td>",
        "pad_token=&quot;&lt;|endoftext|&gt;&quot;",
    ],
)
def test_text_without_a_secret_is_left(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        (f"http://user:{CANARY}@host:5000/ml", "http://host:5000/ml"),
        (f"https://host/ml?key={CANARY}#{CANARY}", "https://host/ml"),
        (f"postgresql://me:{CANARY}@host/db?sslmode=require", "postgresql://host/db?sslmode=require"),
        (f"postgresql://host/db?password={CANARY}&sslmode=require", "postgresql://host/db?sslmode=require"),
        (f"mysql+pymysql://host/db?token={CANARY}", "mysql+pymysql://host/db"),
        ("postgresql://me:pa/ss-word9@db/mlflow?x=1", "postgresql://db/mlflow?x=1"),
        ("https://host:5000/a@b:c", "https://host:5000/a@b:c"),
        ("sqlite:////a@b/mlflow.db?timeout=30", "sqlite:////a@b/mlflow.db?timeout=30"),
    ],
)
def test_an_address_is_stored_without_its_credentials(uri: str, bare: str) -> None:
    assert without_credentials(uri) == bare


def test_a_password_in_the_address_of_any_variable_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", f"postgresql://me:{CANARY}@host/db")
    assert redact(f"no such user me, {CANARY}") == "no such user me, ***"
    monkeypatch.setenv("DATABASE", "postgresql://me:so%2Fme/thing@host/db")
    assert redact("neither so%2Fme/thing nor so/me/thing") == "neither *** nor ***"


# Values of the environment, of the config, and of the command


@pytest.mark.parametrize(
    "name", ["DB_PASSWORD", "HF_TOKEN", "MY_SECRET_2", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_TOKEN", "Key"]
)
def test_values_of_telling_variables_are_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"rejected {CANARY}, {CANARY} again"
    assert redact(text) == text
    monkeypatch.setenv(name, CANARY)
    assert redact(text) == "rejected ***, *** again"
    monkeypatch.delenv(name)
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSH_KEY", "/usr"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/gone/key.json"),
        ("TOKENIZER", "./tokenizer-of-my-own"),
        ("TOKEN", "short"),
        ("USE_TOKEN", "disabled"),
        ("PWD", "work-folder"),
        ("KEYS", CANARY),
    ],
)
def test_values_of_other_variables_are_left(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert redact(f"it is {value} here") == f"it is {value} here"


@pytest.mark.parametrize(
    "secret", ["/Jalrxyz+K7MDENG/bPxRfiCY", "~Jalrxyz+K7MDENG", ".Jalrxyz+K7MDENG/b", "~/gone/Jalr"]
)
def test_a_secret_may_begin_as_a_path_does(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learn([f"{secret}9"])
    assert redact(f"rejected {secret}9") == "rejected ***"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert redact(f"rejected {secret}, {secret} again") == "rejected ***, *** again"


def test_a_path_that_exists_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.pem").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_PRIVATE_KEY", "./key.pem")
    learn([str(tmp_path / "key.pem")])
    text = f"cannot read ./key.pem nor {tmp_path / 'key.pem'}"
    assert redact(text) == text
    monkeypatch.setenv("STORE_CREDENTIALS", f"me:{CANARY}")  # the name is that of a path, the value is none
    assert redact(f"rejected me:{CANARY}") == "rejected ***"


@pytest.mark.parametrize(
    "form",
    [
        'a_b&lt;c&amp;"d+e/f',
        "a_b&lt;c&amp;&quot;d+e/f",
        r'a\_b&lt;c&amp;"d+e/f',
        "a_b%3Cc%26%22d%2Be/f",
        r"a_b<c&\\\"d+e/f",
        json.dumps('a_b<c&"d+e/f')[1:-1],
    ],
)
def test_a_value_is_hidden_in_pages_addresses_and_json(form: str) -> None:
    learn(['a_b<c&"d+e/f'])
    assert redact(f"<p>{form}</p>") == "<p>***</p>"


def test_a_value_is_hidden_where_its_line_was_broken() -> None:
    phrase = "correct horse battery staple " * 6
    learn([phrase.strip()])
    text = yaml.dump({"args": {"phrase": phrase.strip()}, "x": 1}, width=100)
    assert text.count("\n") > 2
    assert redact(text) == "args:\n  phrase: ***\nx: 1\n"


def test_secrets_among_arguments_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.json").touch()
    given = ["own.py", "--api-key", CANARY, "--password=one two three", "model.args.api_key=one two three", "-v"]
    hidden = ["own.py", "--api-key", "***", "--password=***", "model.args.api_key=***", "-v"]
    assert redact_arguments(given) == hidden
    numbers, file = ["--tokens", "1234567890"], ["--credentials", str(tmp_path / "key.json")]
    left = ["own.py", "--token", "--verbose-mode", *numbers, *file]
    assert redact_arguments(left) == left
    addressed = ["--tracking", "db://me:a/b@h", "-H", f"X-API-Key: {CANARY}"]
    assert redact_arguments(addressed)[1::2] == ["db://***@h", "X-API-Key: ***"]
    command = ["/usr/bin/own.py", "--api-key", CANARY, "--epochs", "3", "a b.yaml"]
    assert command_line(command) == "own.py --api-key '***' --epochs 3 'a b.yaml'"
    monkeypatch.setattr(sys, "argv", [*given[:4], "db://me:so/me/thing@h"])
    assert secrets_of(config_of({})) == (CANARY, "one two three", "so/me/thing")


def test_the_secrets_of_a_config_are_learned_by_whoever_has_its_record(tmp_path: Path) -> None:
    args = {"api_key": "correct horse battery", "nested": [{"url": "s3://me:also-hidden@host/x"}], "width": 8}
    config = config_of(args)
    assert secrets_of(config) == ("correct horse battery", "also-hidden")
    record = RunRecord("r", "n", "http://h", "e", {"of.correct horse battery": 1}, secrets=secrets_of(config))
    assert redact("no correct horse battery for also-hidden") == "no *** for ***"
    record.save(tmp_path)
    assert "battery" not in repr(record) + (tmp_path / "record.json").read_text()


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
    config = config_of(args)
    params = redact_tree(args)
    learn(secrets_of(config))
    tree = config.model_dump(mode="json")
    written = [yaml.safe_dump(tree), yaml.dump(tree, width=40), repr(tree), json.dumps(tree), str(args)]
    shown = [redact(text) for text in [json.dumps(params), *written]]
    assert not [(text, secret) for text in shown for secret in secrets if secret in text]
    assert "joe" not in str(args) or "joe" in shown[0]


def test_trees_and_json_keep_their_shape_and_binary_files_stay() -> None:
    learn([CANARY])
    tokens = {"special_tokens": ["<|endoftext|>", "<|padding|>"]}
    tree = {"a": [{"password": "hunter2hunter2", CANARY: 3}], "b": None, "c": 1.5, "d": f"x {CANARY}", **tokens}
    assert redact_tree(tree) == {"a": [{"password": "***", "***": 3}], "b": None, "c": 1.5, "d": "x ***", **tokens}
    hidden = redact_bytes(json.dumps({"token": "4bcdefgh1j", "x": "password: abcdefghij"}).encode())
    assert json.loads(hidden)["token"] == "***"
    assert b"bcdefgh" not in hidden
    assert redact_bytes(b"\x89PNG password=abcdefghij") == b"\x89PNG password=abcdefghij"


# Before text is escaped, cut or handed on


SECRET = "sk_live_abc<def&gh"
PARTS = ("live", "abc", "gh")


def shows(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


def test_secrets_are_hidden_before_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    told = clean_tags({"note": escaped(f"model.args.api_key={SECRET}"), "block": code(f"api_key='{SECRET} ```'")})
    assert (shows(told["note"]), shows(told["block"])) == ([], [])
    assert r"model.args.api\_key" in told["note"]
    monkeypatch.setenv("MY_TOKEN", SECRET)
    tags = {metrics.COMMAND: f"own.py {SECRET}"}
    note = summary(f"named {SECRET}", {}, "FAILED", f"no login with {SECRET}", tags)
    assert shows(note) == []
    assert note.replace(r"\*\*\*", "***").count("***") == 3


@pytest.mark.parametrize("length", [LONGEST_VALUE - 10, 150, 190])
def test_a_secret_is_hidden_before_text_is_cut(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    text = f"{'x' * length} {SECRET} and more {'y' * 200}"
    row = TrialRow("0001", {"source": text}, "failed", reason=text)
    changes = {"source": (text, text), text: ("1", "2")}
    goal = [Objective("loss", "min")]
    assert shows(sweep_note(text, "failed", text, goal, [row], command=text, changes=changes)) == []
    assert shows(changes_part(changes)) == []
    source = "s3://me:long-and-secret@host/a/folder/with/a/long/name/that/does/not/fit"
    assert value_text(source).startswith("s3://***@host/")
    assert len(value_text(source)) <= LONGEST_LABEL


def test_a_sweeps_note_recognises_secrets_by_their_key_and_keeps_their_settings_apart() -> None:
    secrets = ["one_live_two three", "gh_live_two three"]
    settings = [{"model.args.api_key": each, "model.args.more": {"token": each}, "lr": 0.1} for each in secrets]
    rows = [TrialRow(str(place), setting, "finished") for place, setting in enumerate(settings)]
    changes = {"model.args.api_key": (secrets[0], secrets[1])}
    note = sweep_note("n", "finished", None, [Objective("loss", "min")], rows, changes=changes)
    assert not [word for word in ("live", "three") if word in note]
    assert note.count("lr=0.1") == len(rows)
    assert "model.args.api_key: ***" in note


# Fast


def quickest(action: Callable[[str], object], text: str) -> float:
    """Seconds of a core, the least of a few: others may be at work on it."""
    times = []
    for _ in range(5):
        start = time.process_time()
        action(text)
        times.append(time.process_time() - start)
    return min(times)


def test_a_megabyte_takes_no_longer_than_to_find_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", CANARY)
    line = 'step 120/4000 loss 0.5867  val/accuracy 0.8680, tokens 4,613 a second, see https://host/x?y=1 File "a.py"\n'
    text = line * (MEGABYTE // len(line))
    assert quickest(redact, text) < 3 * quickest(re.compile(r"\w+").findall, text)


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-",
        "eyJaaaaaaaa.",
        "bearer ",
        "-----BEGIN PRIVATE KEY-----",
        "ghp_",
        "://a:b",
        "&",
        "a://b:c/d@",
        'token: "a ',
        "token:'a\\\\\"",
        "m",
        "0.123456-",
        '"a.b"',
        "&x",
        "password ",
        "token=a ",
    ],
)
def test_nothing_takes_the_square_of_its_length(piece: str) -> None:
    short, long = (piece * (length // len(piece)) for length in (20_000, 80_000))
    assert quickest(redact, long) < 10 * quickest(redact, short) + 0.01
