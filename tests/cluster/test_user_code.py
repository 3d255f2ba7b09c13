"""Which of the user's own code is sent to a cluster that does not have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cluster.user_code import runtime_env
from paceline.config.loading import validate
from paceline.config.own_arms import own_arms

NET = "def build():\n    raise AssertionError('it is sent, and not imported')\n"


def test_what_a_technique_of_ones_own_imports_travels_beside_the_configs_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, module in (("mine", "sent_own_net"), ("theirs", "sent_their_net"), ("theirs", "unused_net")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{module}.py").write_text(NET)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    tree = {"name": "own", "model": {"path": "sent_own_net:build"}, "data": {"name": "mnist5k"}}
    arms = {"theirs": {"model.path": "sent_their_net:build"}, "wrong": {"trainer.epochs": -1}}
    config = validate({**tree, "tuneup": {"arms": arms}})
    package, *modules = runtime_env(config, *(changed for _, changed in own_arms(config)))["py_modules"]
    assert Path(package).name == "paceline"
    assert modules == [str(tmp_path / "theirs" / "sent_their_net.py")]
    assert runtime_env(config)["py_modules"] == [package]
    assert runtime_env(config)["working_dir"] == str(tmp_path / "mine")
