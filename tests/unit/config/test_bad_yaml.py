"""What is no YAML that a config can be: each kind gets its problem, and all of them at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from paceline.errors import ConfigError
from support.golden import Golden

Write = Callable[..., Path]
Refused = Callable[..., None]

WHOLE_FILES = [
    ("", "empty-file", "", 1),
    ("# nothing\n\n", "empty-file", "", 1),
    ("- name: x\n", "not-a-mapping", "", 1),
    ("hello\n", "not-a-mapping", "", 1),
]

BAD_YAML = [
    ("trainer: {epochs: 1\n", "yaml-syntax", "", 5),
    ("seed: 'x\n", "yaml-syntax", "", 5),
    ("trainer:\n\tepochs: 1\n", "yaml-syntax", "", 5),
    ("storage: path: x\n", "yaml-syntax", "", 4),
    ("trainer:\n    epochs: 1\n  max_steps: 3\n", "yaml-syntax", "", 6),
    ("trainer\nseed: 1\n", "yaml-syntax", "", 5),
    ("storage: {path: @here}\n", "yaml-syntax", "", 4),
    ("trainer: *other\n", "yaml-syntax", "", 4),
    ("---\nname: again\n", "yaml-syntax", "", 4),
    ("seed: \x07\n", "yaml-syntax", "", 4),
    ("seed: 1\nseed: 2\n", "duplicate-key", "seed", 5),
    ("trainer:\n  epochs: 1\n  epochs: 2\n", "duplicate-key", "trainer.epochs", 6),
    ("trainer:\n  1: 2\n", "bad-key", "trainer", 5),
    ("~: 2\n", "bad-key", "", 4),
    ("? [a]\n: 2\n", "bad-key", "", 4),
    ("seed: !!python/object/apply:os.system ['id']\n", "yaml-tag", "seed", 4),
    ("seed: !secret 3\n", "yaml-tag", "seed", 4),
    ("trainer: !!set {a, b}\n", "yaml-tag", "trainer", 4),
    ("trainer: {<<: 3}\n", "yaml-merge", "trainer", 4),
    ("trainer: &t {epochs: *t}\n", "yaml-alias", "trainer.epochs", 4),
]


@pytest.mark.parametrize(("text", "code", "key", "line"), WHOLE_FILES)
def test_a_file_that_holds_no_config(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line, head="")


@pytest.mark.parametrize(("text", "code", "key", "line"), BAD_YAML)
def test_bad_yaml(text: str, code: str, key: str, line: int, refused: Refused) -> None:
    refused(text, code, key, line)


def test_nesting_without_end(refused: Refused) -> None:
    refused(f"seed: {'[' * 2000}{']' * 2000}\n", "too-deep", "", 4)


def test_a_number_without_end(refused: Refused) -> None:
    refused(f"seed: {'9' * 5000}\n", "bad-value", "seed", 4)


def test_yaml_mistakes_are_reported_at_once(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("seed: 1\nseed: 2\n3: x\ntrainer: !own {epochs: 1}\n"))

    assert [problem.code for problem in caught.value.problems] == ["duplicate-key", "bad-key", "yaml-tag"]


def test_an_alias_bomb_is_refused(write: Write) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(ConfigError, match="too-large"):
        load_config(write(f"l0: &l0 [a]\n{levels}"))


def test_a_chain_of_aliases_is_refused(write: Write) -> None:
    chain = "".join(f"l{n}: &l{n} [*l{n - 1}]\n" for n in range(1, 500))
    with pytest.raises(ConfigError, match="too-deep"):
        load_config(write(f"l0: &l0 [a]\n{chain}"))


def test_anchors_and_merges_are_read(write: Write) -> None:
    optimizer = "optimizer: &o {name: sgd, lr: 1e-3}\n"
    task = "task: {path: 'own_nets:build', args: {<<: *o, lr: 2}}\n"
    config = load_config(write(optimizer + task))

    assert config.optimizer.lr == 0.001
    assert config.task.model_dump()["args"] == {"name": "sgd", "lr": 2}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("rum.yaml", "no-file"),
        ("nowhere/run.yaml", "no-file"),
        (".", "is-folder"),
        ("bad\0name", "unreadable"),
    ],
)
def test_a_file_that_cannot_be_read(name: str, code: str, write: Write, golden: Golden) -> None:
    write()
    with pytest.raises(ConfigError) as caught:
        load_config(name)

    assert caught.value.problems[0].code == code
    golden(str(caught.value))


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("name: x\nseed: é\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_config(file)

    assert caught.value.problems[0].code == "not-utf8"
    assert caught.value.problems[0].place == f"{file}:2:1"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="too-large"):
        load_config(file)
