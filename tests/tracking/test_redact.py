"""Secrets are known by their shape, by the environment's and the config's values, and found fast."""

import json
import sys
import time
from pathlib import Path

import pytest
import yaml

from paceline.config.loading import validate
from paceline.tracking import secret_values as room
from paceline.tracking.record import RunRecord
from paceline.tracking.redact import (
    learn,
    redact,
    redact_arguments,
    redact_bytes,
    redact_tree,
    secrets_of,
)

CANARY = "9f2kQz71canary"
LONG = "Abc123" * 7
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_learned", set())


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        f"ghp_{LONG[:36]}",
        f"github_pat_{LONG[:22]}_{LONG}",
        f"hf_{LONG[:34]}",
        "xoxb-123456789012-abcdefghij",
        f"AIza{LONG[:35]}",
        f"eyJ{LONG}.eyJ{LONG}.{LONG}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{LONG}\n{LONG}\n-----END RSA PRIVATE KEY-----",
    ],
    ids=lambda secret: secret[:12],
)
def test_a_known_shape_is_hidden(secret: str) -> None:
    assert redact(f"before {secret} after") == "before *** after"
    assert redact(f"before({secret!s}), after") == "before(***), after"


@pytest.mark.parametrize(
    "header", ["Authorization: Bearer", "'Authorization': 'Basic", "bearer", "authorization=Token"]
)
def test_a_header_is_hidden(header: str) -> None:
    assert CANARY not in redact(f"sent {header} {CANARY}== and more")


@pytest.mark.parametrize(
    "name", ["DB_PASSWORD", "HF_TOKEN", "MY_SECRET_2", "AWS_SECRET_ACCESS_KEY", "CREDENTIALS", "Key"]
)
def test_values_of_telling_variables_are_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"rejected {CANARY}, {CANARY} again"
    assert redact(text) == text
    monkeypatch.setenv(name, CANARY)
    assert redact(text) == "rejected ***, *** again"
    monkeypatch.delenv(name)
    assert redact(text) == text


@pytest.mark.parametrize(
    "secret", ["/Jalrxyz+K7MDENG/bPxRfiCY", "~Jalrxyz+K7MDENG", ".Jalrxyz+K7MDENG/b", "~/gone/Jalr"]
)
def test_a_secret_may_begin_as_a_path_does(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learn([f"{secret}9"])
    assert redact(f"rejected {secret}9") == "rejected ***"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert redact(f"rejected {secret}, {secret} again") == "rejected ***, *** again"


def test_what_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key.pem").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_PRIVATE_KEY", "./key.pem")
    learn([str(tmp_path / "key.pem")])
    text = f"cannot read ./key.pem nor {tmp_path / 'key.pem'}"
    assert redact(text) == text


def test_a_path_is_no_word_of_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no path is hidden, whatever the variable's name ends in."""
    monkeypatch.setenv("STORE_CREDENTIALS", f"me:{CANARY}")
    assert redact(f"rejected me:{CANARY}") == "rejected ***"


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
    ],
)
def test_what_is_assigned_may_have_blanks_and_quotes(text: str, hidden: str) -> None:
    assert redact(text) == hidden


@pytest.mark.parametrize(
    "text", ["token_file: ./tokens of mine", "secret: 'short'", 'password: ""', "its tokens: 'a b c d e'"]
)
def test_what_is_assigned_may_be_no_secret(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "form",
    [
        'a_b&lt;c&amp;"d+e/f',
        "a_b&lt;c&amp;&quot;d+e/f",
        r'a\_b&lt;c&amp;"d+e/f',
        "a_b%3Cc%26%22d%2Be/f",
        r"a_b<c&\\\"d+e/f",
    ],
)
def test_a_value_is_hidden_in_pages_and_addresses_too(form: str) -> None:
    learn(['a_b<c&"d+e/f'])
    assert redact(f"<p>{form}</p>") == "<p>***</p>"


def test_other_forms_of_a_value_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", 'a"b/c d%e')
    quoted = json.dumps({"x": 'a"b/c d%e'})
    assert redact(f"{quoted} a%22b%2Fc%20d%25e") == '{"x": "***"} ***'


def test_a_value_is_hidden_where_its_line_was_broken() -> None:
    phrase = "correct horse battery staple " * 6
    learn([phrase.strip()])
    text = yaml.dump({"args": {"phrase": phrase.strip()}, "x": 1}, width=100)
    assert text.count("\n") > 2
    assert redact(text) == "args:\n  phrase: ***\nx: 1\n"


def test_secrets_among_arguments_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "key.json").touch()
    given = ["own.py", "--api-key", CANARY, "--password=one two three", "model.args.api_key=one two three", "-v"]
    hidden = ["own.py", "--api-key", "***", "--password=***", "model.args.api_key=***", "-v"]
    assert redact_arguments(given) == hidden
    left = [
        "own.py",
        "--token",
        "--verbose-mode",
        "--tokens",
        "1234567890",
        "--credentials",
        str(tmp_path / "key.json"),
    ]
    assert redact_arguments(left) == left
    assert redact_arguments(["--tracking", "db://me:a/b@h", "-H", f"X-API-Key: {CANARY}"])[1::2] == [
        "db://***@h",
        "X-API-Key: ***",
    ]


def test_secrets_of_the_command_belong_to_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    config = validate({"name": "n", "model": {"path": "own:net"}, "data": {"name": "synthetic"}})
    monkeypatch.setattr(
        sys, "argv", ["own.py", "--api-key", CANARY, "--password=one two three", "db://me:so/me/thing@h"]
    )
    assert secrets_of(config) == (CANARY, "one two three", "so/me/thing")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SSH_KEY", "/usr"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/gone/key.json"),
        ("SSL_KEY_FILE", "./gone.pem"),
        ("TOKENIZER", "./tokenizer-of-my-own"),
        ("TOKEN", "short"),
        ("USE_TOKEN", "disabled"),
        ("PWD", "work-folder"),
        ("KEYS", CANARY),
    ],
)
def test_what_says_nothing_is_left(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert redact(f"it is {value} here") == f"it is {value} here"


@pytest.mark.parametrize(
    "text", ["a bearer of good news", "hf_hub", "sk-learn is here", "eyJust.a.word", "the basic authorization", "AKIA"]
)
def test_words_are_left(text: str) -> None:
    assert redact(text) == text


def test_a_configs_secrets_are_learned_by_whoever_has_its_record() -> None:
    source = "s3://me:also-hidden@host/x"
    model = {"path": "own:net", "args": {"api_key": "correct horse battery", "nested": [{"url": source}], "width": 8}}
    config = validate({"name": "n", "model": model, "data": {"name": "synthetic"}})
    assert secrets_of(config) == ("correct horse battery", "also-hidden")
    record = RunRecord("r", "n", "http://h", "e", secrets=secrets_of(config))
    assert redact("no correct horse battery for also-hidden") == "no *** for ***"
    assert "battery" not in repr(record)


def test_a_record_is_stored_without_them(tmp_path: Path) -> None:
    RunRecord("r", "n", "http://h", "e", {f"of.{CANARY}": 1}, secrets=(CANARY,)).save(tmp_path)
    assert CANARY not in (tmp_path / "record.json").read_text()


def test_a_tree_stays_a_tree() -> None:
    learn([CANARY])
    tree = {"a": [{"password": "hunter2hunter2", CANARY: 3}], "b": None, "c": 1.5, "d": f"x {CANARY}"}
    assert redact_tree(tree) == {"a": [{"password": "***", "***": 3}], "b": None, "c": 1.5, "d": "x ***"}


def test_json_stays_json_and_what_is_no_text_stays() -> None:
    hidden = redact_bytes(json.dumps({"token": "abcdefghij", "x": "password: abcdefghij"}).encode())
    assert json.loads(hidden)["token"] == "***"
    assert b"abcdefghij" not in hidden
    assert redact_bytes(b"\x89PNG password=abcdefghij") == b"\x89PNG password=abcdefghij"


def quickest(text: str) -> float:
    """Seconds of a core, the least of a few: others may be at work on it."""
    times = []
    for _ in range(5):
        start = time.process_time()
        redact(text)
        times.append(time.process_time() - start)
    return min(times)


def test_a_megabyte_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", CANARY)
    line = 'step 120/4000 loss 0.5867  val/accuracy 0.8680, tokens 4,613 a second, see https://host/x?y=1 File "a.py"\n'
    assert quickest(line * (MEGABYTE // len(line))) < 0.05


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
        "a://b:c/",
        'token: "a ',
        "token:'a\\\\\"",
    ],
)
def test_nothing_takes_the_square_of_its_length(piece: str) -> None:
    def text(length: int) -> str:
        return piece * (length // len(piece))

    assert quickest(text(400_000)) < 10 * quickest(text(100_000)) + 0.01
