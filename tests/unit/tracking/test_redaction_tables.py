"""Two tables: secrets that are hidden wherever they stand, and ordinary values of machine learning that are left."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import pytest
import yaml

from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.shareable import secrets_of
from paceline.redaction import learn, redact, redact_arguments, redact_tree
from paceline.sweeps.results.record import without_secrets
from paceline.tracking.run_record import RunRecord

BASE62 = "q7Zx3Kp9Wm2Rt8Vb4Ny6Lc1Hd5Gf0Js"
HEX = "9f86d081884c7d659a2feaa0c55ad015"

SHAPES = {
    "aws key id": "AKIAIOSFODNN7EXAMPLE",
    "aws session key id": "ASIAIOSFODNN7EXAMPLE",
    "github": f"ghp_{BASE62}abcd",
    "github fine grained": f"github_pat_{BASE62}_{BASE62}",
    "gitlab": f"glpat-{BASE62[:20]}",
    "hugging face": f"hf_{BASE62}ab",
    "openai": f"sk-{BASE62}{BASE62[:16]}",
    "openai project": f"sk-proj-{BASE62[:12]}_{BASE62[:8]}-{BASE62}",
    "openai service": f"sk-svcacct-{BASE62}",
    "anthropic": f"sk-ant-api03-{BASE62}-{BASE62}_AA",
    "slack": "xoxb-123456789012-q7Zx3Kp9Wm",
    "google": f"AIza{BASE62}abcd",
    "databricks": f"dapi{HEX}",
    "databricks numbered": f"dapi{HEX}-2",
    "nvidia": f"nvapi-{BASE62}-{BASE62}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{BASE62}",
    "json web token": f"eyJhbGciOiJI.eyJzdWIiOiIx.{BASE62}",
    "neptune": f"eyJhcGlfYWRkcmVzcyI6.{BASE62}",
    "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{BASE62}\n{BASE62}\n-----END RSA PRIVATE KEY-----",
}

UNDER_KEYS = [
    ("password", "attention"),  # for certain a secret, whatever it is
    ("db_password", "hunter2hunter2"),
    ("passphrase", "correct horse battery staple"),
    ("client_secret", "also-hidden"),
    ("api_key", "supersecret"),
    ("aws_secret_access_key", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("account_key", f"{BASE62}=="),
    ("token", BASE62),
    ("hf_token", HEX),
    ("auth_token", "camel-1234"),
    ("githubToken", "4f9d1c7a2b"),
    ("auth", "four-12345"),
    ("storage_key", f"{BASE62}/{BASE62}=="),
    ("pwd", "hunter2hunter2"),
]

ORDINARY = [
    ("pad_token", "<|endoftext|>"),
    ("eos_token", "<|im_end|>"),
    ("bos_token", "<|begin_of_text|>"),
    ("bos_token", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
    ("image_token", "<image_soft_token>"),
    ("pad_token", "<|reserved_special_token_1234|>"),
    ("mask_token", "[MASK_TOKEN]"),
    ("unk_token", "[unused12]"),
    ("token", "attention"),
    ("auth", "attention"),
    ("pooling_token", "first-token"),
    ("next_token", "gpt2-medium"),
    ("cls_token", "BatchNorm2d"),
    ("token", "TransformerEncoder"),
    ("token", "meta-llama/Llama-3.1-8B"),
    ("token", "val/top5_accuracy"),
    ("pass", "forward_backward"),
    ("storage_key", "datasets/imagenet/train"),
    ("pwd", "/home/me/project-2"),
    ("tokenizer", "bert-base-uncased"),
    ("special_tokens", "<|endoftext|>"),
    ("num_tokens", "1234567890"),
    ("sort_key", "alphabetical"),
    ("bypass", "sometimes"),
    ("revision", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
    ("sha256", HEX * 2),
    ("run_id", "b52ba4ea-6d2c-4a1e-9d94-0a7a4a3cf5e2"),
    ("uri", "s3://bucket/data/train@v2"),
    ("device", "cuda:0"),
]
"""As keys of a config, and under those that only sound secret."""


def written(args: Mapping[str, str]) -> list[str]:
    """A mapping as configs, logs, commands, code and pages have it."""
    key, value = next(iter(args.items()))
    return [
        *(yaml.safe_dump(dict(args)), json.dumps(args), repr(args), json.dumps(json.dumps(args))),
        *(f"{key}: {value}\n", f'{key}="{value}")', f"{key} = '{value}'  # why"),
        escape(f"<td>{key}: {value}</td>", quote=False).replace("&lt;td&gt;", "<td>").replace("&lt;/td&gt;", "</td>"),
    ]


def config_of(args: Mapping[str, Any], **sections: Any) -> ExperimentConfig:
    model = {"path": "own:net", "args": dict(args)}
    return validate({"name": "n", "model": model, "data": {"name": "synthetic"}, **sections})


@pytest.mark.parametrize("secret", SHAPES.values(), ids=list(SHAPES))
def test_a_known_shape_is_hidden_without_a_key(secret: str) -> None:
    assert redact(f"before {secret} after, ({secret})") == "before *** after, (***)"
    assert redact_tree({"args": [secret], "note": f"is {secret}"}) == {"args": ["***"], "note": "is ***"}


@pytest.mark.parametrize(("key", "secret"), UNDER_KEYS, ids=[key for key, _ in UNDER_KEYS])
def test_a_secret_under_its_key_is_hidden(key: str, secret: str) -> None:
    assert redact_tree({"args": {key: secret}}) == {"args": {key: "***"}}
    assert redact_arguments([f"--{key}", secret, f"model.args.{key}={secret}"])[1:] == ["***", f"model.args.{key}=***"]
    if key in ("auth", "storage_key") or " " in secret:  # too common in texts; with blanks, the value is learned
        learn([secret])
    assert not [text for text in written({key: secret}) if secret in redact(text)]


@pytest.mark.parametrize(("key", "value"), ORDINARY, ids=[f"{key} {value}" for key, value in ORDINARY])
def test_an_ordinary_value_is_left(key: str, value: str) -> None:
    config = config_of({key: value})
    learn(secrets_of(config))
    tree = config.model_dump(mode="json")
    assert redact_tree(tree)["model"]["args"] == {key: value}
    assert without_secrets(tree) == tree  # as `export` and the artifacts of a sweep have it
    texts = written({key: value})
    assert [redact(text) for text in texts] == texts
    arguments = [f"--{key.replace('_', '-')}", value, f"model.args.{key}={value}"]
    assert redact_arguments(arguments) == arguments
    record = RunRecord("r", "n", "http://h", "e", {f"model.args.{key}": value}, secrets=secrets_of(config))
    assert record.params == {f"model.args.{key}": value}


WORDS = ["attention", "TRANSFORMER", "Accuracy", "bfloat16", "val/accuracy", "layer_norm", "resnet50-large"]


DOUBTFUL = ("MY_TOKEN", "SORT_KEY", "KEY")
CERTAIN = ("DB_PASSWORD", "MY_SECRET", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


@pytest.mark.parametrize("variable", [*DOUBTFUL, *CERTAIN])
def test_a_word_in_a_variable_renames_no_metric(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in WORDS if variable in DOUBTFUL else ("attention", "mlflow", "loss"):
        monkeypatch.setenv(variable, word)
        assert redact(f"{word}/entropy") == f"{word}/entropy"
    monkeypatch.setenv(variable, "attention-0042")
    assert redact("attention-0042/entropy") == "***/entropy"


def test_a_word_of_an_address_or_a_password_renames_no_metric() -> None:
    config = config_of({"url": "s3://me:attention@host/x", "password": "accuracy", "token": "layer_norm"})
    learn(secrets_of(config))
    assert [redact(key) for key in ("attention/entropy", "val/accuracy", "layer_norm/norm")] == [
        *("attention/entropy", "val/accuracy", "layer_norm/norm")
    ]
    assert redact("s3://me:attention@host/x, password: accuracy") == "s3://***@host/x, password: ***"


def test_a_password_that_the_config_shows_elsewhere_is_hidden_under_its_key_alone() -> None:
    args = {"password": "wide-model", "api_key": "hidden_size", "secret": "other-words", "hidden_size": 3}
    config = config_of({**args, "source": "s3://host/wide-model/2"})
    assert secrets_of(config) == ("other-words",)
    learn(secrets_of(config))
    shown = redact_tree(config.model_dump(mode="json"))["model"]["args"]
    hidden = dict.fromkeys(("password", "api_key", "secret"), "***")
    assert shown == {**hidden, "hidden_size": 3, "source": "s3://host/wide-model/2"}
    assert redact("lost wide-model and other-words") == "lost wide-model and ***"


def test_a_generated_secret_is_hidden_though_the_config_shows_it_elsewhere() -> None:
    config = config_of({"api_key": BASE62, "header": f"X-Key {BASE62}", BASE62: 1})
    learn(secrets_of(config))
    assert BASE62 not in json.dumps(redact_tree(config.model_dump(mode="json")))


def test_a_certain_key_below_a_doubtful_one_hides_a_word() -> None:
    tree = {"auth": {"type": "oauth2-client", "password": "attention", "more": ["four-12345", "layer_norm"]}}
    assert redact_tree(tree) == {"auth": {"type": "oauth2-client", "password": "***", "more": ["***", "layer_norm"]}}
