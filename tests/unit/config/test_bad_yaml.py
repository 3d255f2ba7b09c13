"""What is no YAML that a config can be: each kind gets its problem, and all of them at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.loading import load_config
from support.configs import problems_of
from support.golden import Golden

Write = Callable[..., Path]
Refused = Callable[..., None]

WHOLE_FILES = [
    ("# nothing\n\n", "empty-file"),
    ("- name: x\n", "not-a-mapping"),
    ("hello\n", "not-a-mapping"),
]
BAD_YAML = [
    ("trainer: {epochs: 1\n", "yaml-syntax", "", 5),
    ("seed: 'x\n", "yaml-syntax", "", 5),
    ("trainer:\n\tepochs: 1\n", "yaml-tab", "", "5:1"),
    ("trainer:\n  seed: 1\n  \tepochs: 1\n", "yaml-tab", "", "6:3"),
    ("seed:\t1\n", "yaml-tab", "", "4:6"),
    ("storage: path: x\n", "yaml-syntax", "", 4),
    ("trainer:\n    epochs: 1\n  max_steps: 3\n", "yaml-syntax", "", 6),
    ("trainer\nseed: 1\n", "yaml-syntax", "", 5),
    ("storage: {path: @here}\n", "yaml-syntax", "", 4),
    ("trainer: *other\n", "yaml-syntax", "", 4),
    ("---\nname: again\n", "yaml-syntax", "", 4),
    ("seed: \x07\n", "yaml-syntax", "", 4),
    ("trainer:\n  epochs: 1\n  epochs: 2\n", "duplicate-key", "trainer.epochs", 6),
    ("trainer:\n  1: 2\n", "bad-key", "trainer", 5),
    ("? [a]\n: 2\n", "bad-key", "", 4),
    ("seed: !!python/object/apply:os.system ['id']\n", "yaml-tag", "seed", 4),
    ("seed: !secret 3\n", "yaml-tag", "seed", 4),
    ("trainer: {<<: 3}\n", "yaml-merge", "trainer", 4),
    ("trainer: &t {epochs: *t}\n", "yaml-alias", "trainer.epochs", 4),
    pytest.param(f"seed: {'[' * 2000}{']' * 2000}\n", "too-deep", "", 4, id="deep"),
    pytest.param(f"seed: {'9' * 5000}\n", "bad-value", "seed", 4, id="long"),
]


@pytest.mark.parametrize(("text", "code"), WHOLE_FILES)
def test_a_file_that_holds_no_config(text: str, code: str, refused: Refused) -> None:
    refused(text, code, "", 1, head="")


@pytest.mark.parametrize(("text", "code", "key", "line"), BAD_YAML)
def test_bad_yaml(text: str, code: str, key: str, line: int | str, refused: Refused) -> None:
    refused(text, code, key, line)


def test_yaml_mistakes_are_reported_at_once(write: Write) -> None:
    found = problems_of(load_config, write("seed: 1\nseed: 2\n3: x\ntrainer: !own {epochs: 1}\n"))
    assert [problem.code for problem in found] == ["duplicate-key", "bad-key", "yaml-tag"]


@pytest.mark.parametrize(
    ("levels", "uses", "code"), [(8, 9, "too-large"), (499, 1, "too-deep")], ids=["alias bomb", "chain"]
)
def test_aliases_that_multiply_are_refused(levels: int, uses: int, code: str, write: Write) -> None:
    lines = (f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * uses)}]\n" for n in range(1, levels + 1))
    assert problems_of(load_config, write(f"l0: &l0 [a]\n{''.join(lines)}"))[0].code == code


def test_anchors_and_merges_are_read(write: Write) -> None:
    optimizer = "optimizer: &o {name: sgd, lr: 1e-3}\n"
    config = load_config(write(optimizer + "task: {path: 'own_nets:build', args: {<<: *o, lr: 2}}\n"))
    assert config.optimizer.lr == 0.001
    assert config.task.model_dump()["args"] == {"name": "sgd", "lr": 2}


@pytest.mark.parametrize(
    ("name", "code"),
    [("rum.yaml", "no-file"), ("nowhere/run.yaml", "no-file"), (".", "is-folder"), ("bad\0name", "unreadable")],
)
def test_a_file_that_cannot_be_read(name: str, code: str, write: Write, golden: Golden) -> None:
    write()
    (problem,) = problems_of(load_config, name)
    assert problem.code == code
    golden(str(problem))


@pytest.mark.parametrize(
    ("content", "code", "position"),
    [("name: x\nseed: é\n".encode("latin-1"), "not-utf8", ":2:1"), (b"#" * 1_000_001, "too-large", "")],
    ids=["latin-1", "large"],
)
def test_a_file_that_is_no_text_or_too_large(content: bytes, code: str, position: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    (problem,) = problems_of(load_config, file)
    assert (problem.code, problem.place) == (code, f"{file}{position}")
