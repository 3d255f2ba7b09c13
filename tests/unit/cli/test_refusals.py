"""What the command line refuses before anything starts: the exit code, the codes of all problems, no traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.golden import Golden

Command = Callable[..., Any]


def test_a_bad_file_ends_with_2_and_every_problem_at_its_place(command: Command, folder: Path) -> None:
    good = (folder / "tiny.yaml").read_text()
    bad = good.replace("epochs: 25", "epoch: 25").replace("synthetic", "sintetic").replace("use_gpu: false", "gpu: 1")
    (folder / "bad.yaml").write_text(bad)
    ended = command("train", "bad.yaml")
    assert (ended.code, ended.out) == (2, "")
    places = {"bad.yaml:3:8": "unknown-component", "bad.yaml:4:11": "unknown-key", "bad.yaml:5:27": "unknown-key"}
    lines = [line for line in ended.err.splitlines() if not line.startswith("    hint: ")]
    assert len(lines) == len(places)
    for line, (place, code) in zip(lines, places.items(), strict=True):
        assert line.startswith(f"error: {place}: ")
        assert line.endswith(f" [{code}]")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "tiny.yaml", "--resum-never"),
        ("train", "tiny.yaml", "trainer.epochs"),
        ("train", "tiny.yaml", "--dry-run", "trainer"),
        ("train", "tiny.yaml", "--epochs", "3"),
        ("train", "tiny.yaml", "storage.path=ftp://bucket/runs", "--json"),
        ("train", "tiny.yaml", "storage.path=htp://x"),
        ("train", "tiny.yaml", "storage.path=htp://x", "--dry-run"),
        ("train", "tiny.yaml", "tracking.uri=htp://x"),
        ("train", "tiny.yaml", "tracking.uri=htp://x", "--dry-run"),
        ("sweep", "tiny.yaml", "sweep.space={seed: [1, 2]}", "tracking.uri=htp://x", "--dry-run"),
        ("tuneup", "tiny.yaml", "tracking.uri=htp://x", "--dry-run"),
        ("train", ""),
        ("train",),
        ("train", "tiny.yaml", "--wait-for-resources=-1"),
        ("train", "tiny.yaml", "-q", "-v"),
        ("train", "tiny.yaml", "--resume", "--new"),
        ("train", "tiny.yaml", "--extend", "--fork"),
        ("train", "tiny.yaml", "--extend", "--new"),
        ("sweep", "tiny.yaml", "--extend", "--resume"),
        ("sweep", "tiny.yaml", "--extend", "--init-from", "base"),
        ("sweep", "tiny.yaml", "sweep.space={seed: [1, 2]}", "--extend"),
        ("sweep", "tiny.yaml", "sweep.space={seed: [1, 2]}", "--extend", "--dry-run"),
        ("compare", "a", "b", "--metric", "val/loss"),
        ("submit", "--follow", "job", "--new"),
        ("submit", "tiny.yaml", "--follow", "job"),
        ("no-such-command",),
        (),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_ends_with_2(
    command: Command, folder: Path, arguments: tuple[str, ...], golden: Golden
) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert {file.name for file in folder.iterdir()} <= {"tiny.yaml", "own_net.py", "__pycache__"}
    golden(ended.err.splitlines()[-1])


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (["scaling.num_workers=4096", "data.global_batch_size=4096"], "too-few-cores"),
        (["scaling.use_gpu=true", "scaling.num_workers=64", "data.global_batch_size=64"], "too-few-gpus"),
    ],
    ids=["workers", "GPUs"],
)
def test_more_than_the_machine_has_ends_with_3_before_ray_starts(
    command: Command, folder: Path, overrides: list[str], code: str
) -> None:
    ended = command("train", "tiny.yaml", "--json", *overrides)
    assert ended.code == 3
    assert (ended.json["code"], ended.json["exit_code"]) == (code, 3)
    assert not (folder / "runs").exists()


def test_overrides_may_stand_before_between_and_after_the_flags(command: Command) -> None:
    arguments = ("tiny.yaml", "seed=1", "--dry-run", "trainer.epochs=2", "--json", "optimizer.lr=0.5")
    config = command("train", *arguments).json["config"]
    assert (config["seed"], config["trainer"]["epochs"], config["optimizer"]["lr"]) == (1, 2, 0.5)


def test_no_secret_of_the_tracking_address_is_printed(command: Command) -> None:
    address = "tracking.uri=http://user:canary@host:5000/?token=canary"
    plain = command("train", "tiny.yaml", address, "--dry-run")
    as_json = command("train", "tiny.yaml", address, "--dry-run", "--json")
    mistyped = command("train", "tiny.yaml", address.replace("uri", "urI"))
    assert (plain.code, as_json.code, mistyped.code) == (0, 0, 2)
    assert as_json.json["config"]["tracking"]["uri"] == "http://host:5000/"
    assert "tracking.urI: there is no such key [unknown-key]" in mistyped.err
    assert "canary" not in "".join(ended.out + ended.err for ended in (plain, as_json, mistyped))


def test_the_schema_has_every_section(command: Command) -> None:
    ended = command("schema")
    schema = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert [set(each["required"]) for each in schema["anyOf"]] == [{"name", "model", "data"}, {"extends"}]
    assert set(schema["properties"]) >= {"task", "optimizer", "lr_scheduler", "trainer", "scaling", "storage"}
