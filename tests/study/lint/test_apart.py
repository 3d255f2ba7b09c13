"""Lint in a process of its own, as a tune-up does it."""

from __future__ import annotations

from pathlib import Path

from paceline import load_config
from paceline.study.lint.apart import LintApart

CONFIGS = Path(__file__).parents[3] / "configs"


def test_what_is_found_comes_back_from_the_other_process() -> None:
    config = load_config(CONFIGS / "mnist_naive.yaml")
    look = LintApart(config)
    try:
        assert [finding.rule for finding in look.findings_at_best()] == ["logs-every-step"]
    finally:
        look.end()


def test_a_model_that_cannot_be_built_is_left_to_whoever_trains_it(tmp_path: Path) -> None:
    (tmp_path / "broken_net.py").write_text("def build(): raise OSError('no weights')")
    (tmp_path / "own.yaml").write_text("name: own\nmodel: {path: 'broken_net:build'}\ndata: {name: mnist5k}\n")
    look = LintApart(load_config(tmp_path / "own.yaml"))
    try:
        assert look.findings_at_best() == []
    finally:
        look.end()
