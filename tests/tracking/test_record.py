"""What is known at launch: params as the user wrote them, and no secrets."""

import time
from pathlib import Path

import pytest

from paceline.tracking.record import RunRecord, flatten, param_text
from paceline.tracking.redact import redact, without_credentials

CANARY = "canary-S3cr3t"


def test_a_nested_config_becomes_dotted_keys() -> None:
    nested = {"a": {"b": {"c": 1}, "empty": {}}, "d": [1, 2], "e": None}
    assert flatten(nested) == {"a.b.c": 1, "a.empty": {}, "d": [1, 2], "e": None}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), (0.1, "0.1"), ("bf16", "bf16"), ([1, 2], "[1, 2]")]
)
def test_values_read_as_in_the_config(value: object, text: str) -> None:
    assert param_text(value) == text


def test_long_params_are_cut_at_the_limit_of_mlflow() -> None:
    record = RunRecord("r", "n", "http://h", "e", params={"long": "x" * 7000, "fits": "x" * 6000})
    assert {key: len(value) for key, value in record.params.items()} == {"long": 6000, "fits": 6000}


def test_a_run_id_that_would_break_the_search_is_refused() -> None:
    with pytest.raises(ValueError, match="without quotes"):
        RunRecord("r' or '1", "n", "http://h", "e")


def test_no_secret_is_kept_or_shown(tmp_path: Path) -> None:
    uri = f"http://user:{CANARY}@host:5000"
    params = {"tracking.uri": uri, "data.args.api_key": CANARY, "data.args.pad_token": "<pad>"}
    config = f"tracking:\n  uri: {uri}\ndata: {{args: {{password: {CANARY}, size: 28}}}}\n"
    record = RunRecord("r", "n", uri, "e", params, {"note": f"token={CANARY}"}, {"config.yaml": config})
    record.save(tmp_path)
    assert CANARY not in repr(record)
    assert CANARY not in (tmp_path / "record.json").read_text()
    assert record.params["data.args.pad_token"] == "<pad>"
    assert "size: 28" in record.artifacts["config.yaml"]
    assert record.uri == uri


def test_a_saved_record_is_read_again(tmp_path: Path) -> None:
    record = RunRecord("r", "n", f"http://user:{CANARY}@host:5000", "e", {"lr": 0.1}, {"t": "v"}, {"a.txt": "A"})
    record.save(tmp_path)
    assert RunRecord.load(tmp_path, record.uri) == record
    assert RunRecord.load(tmp_path).uri == "http://host:5000"


@pytest.mark.parametrize(
    "text",
    [
        f"GET http://me:{CANARY}@host/api failed",
        f"http://host/x?api_key={CANARY}&y=1",
        f"password: '{CANARY}'",
        f'{{"mlflow_token": "{CANARY}"}}',
    ],
)
def test_redaction_hides_the_secret_and_only_that(text: str) -> None:
    hidden = redact(f"before {text} after")
    assert CANARY not in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")


def test_redaction_knows_the_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CANARY in redact(f"rejected {CANARY}")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", CANARY)
    assert redact(f"rejected {CANARY}") == "rejected ***"


def test_redaction_leaves_the_next_line_of_a_file() -> None:
    text = "uri: postgresql://host/db?password=\nexperiment: long-enough-to-be-one\n"
    assert redact(text) == text


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        (f"http://user:{CANARY}@host:5000/ml", "http://host:5000/ml"),
        (f"https://host/ml?key={CANARY}#{CANARY}", "https://host/ml"),
        (f"postgresql://me:{CANARY}@host/db?sslmode=require", "postgresql://host/db?sslmode=require"),
        (f"postgresql://host/db?password={CANARY}&sslmode=require", "postgresql://host/db?sslmode=require"),
        (f"mysql+pymysql://host/db?token={CANARY}", "mysql+pymysql://host/db"),
        ("sqlite:////a@b/mlflow.db?timeout=30", "sqlite:////a@b/mlflow.db?timeout=30"),
    ],
)
def test_an_address_is_stored_without_its_credentials(uri: str, bare: str) -> None:
    assert without_credentials(uri) == bare


@pytest.mark.parametrize("text", ["num_tokens: 50257 is much", "http://host:5000/a@b", "tokenizer: gpt2-medium"])
def test_redaction_leaves_what_is_no_secret(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("piece", ["m", "a1b2", "0.123456-", '"a.b"', "a://", "&x", "password ", "token=a "])
def test_secrets_are_looked_for_in_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    redact(text)
    assert time.process_time() - start < 1.0


def test_a_secret_in_a_long_word_is_hidden() -> None:
    shown = redact(f"{'x' * 500}_password=hunter2hunter2 {'y' * 500}s3://me:hunter2hunter2@host")
    assert "hunter2" not in shown
    assert shown.endswith("s3://***@host")
