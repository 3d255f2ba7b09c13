"""The exhaustive search beside a tune-up: its combinations, its journal, which one is the best, and its command."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.study.tuneup.arms import Arm
from paceline.study.tuneup.clock import Clock
from paceline.study.tuneup.outcome import Quality
from paceline.study.tuneup.qualities import Trainings
from support.toys import toy_config

from .played_bench import PlayedClock
from .searches import BENCHMARKS, FASTER, SEARCH, SLOWER, SPOILS, arm, ignored, module, plain, played, speed


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return


def test_each_family_is_an_axis_and_all_combinations_are_there_once() -> None:
    arms = [
        arm("batch-x2", "batch", data__global_batch_size=32),
        arm("batch-x4", "batch", data__global_batch_size=64),
        FASTER,
        SLOWER,
        Arm("closed", {"checkpoint.keep": 9}, "closed", "why", why_not="it is for GPUs"),
        Arm("thrifty", {"checkpoint.keep": 9}, "memory", "why", saves_memory=True),
    ]
    product = module("axes").product_of(plain(), arms)
    assert {family: len(each) for family, each in product.axes.items()} == {"batch": 2, "keeping": 1, "failing": 1}
    names = [each.name for each in product.combinations]
    assert len(set(names)) == len(names) == 3 * 2 * 2
    assert {"as it is", "batch-x4", "batch-x2 + faster + slower"} <= set(names)
    by_name = {each.name: each.config for each in product.combinations}
    assert by_name["as it is"] == plain()
    both = by_name["batch-x4 + slower"]
    assert (both.data.global_batch_size, both.scaling.max_failures, both.checkpoint.keep) == (64, 7, 3)
    assert (product.contradictory, product.repeated, product.with_savers) == (0, 0, 24)


def test_the_order_is_random_and_the_same_for_a_seed() -> None:
    def names(seed: int) -> list[str]:
        product = module("axes").product_of(plain(), [FASTER, SLOWER, SPOILS], seed)
        return [each.name for each in product.combinations]

    assert names(0) == names(0)
    assert len({tuple(names(seed)) for seed in range(5)}) > 1
    assert all(sorted(names(seed)) == sorted(names(0)) for seed in range(5))


def test_what_contradicts_itself_or_comes_to_the_same_is_left_out_and_counted() -> None:
    deterministic = arm("deterministic", "flags", trainer__deterministic=True)
    autotune = arm("autotune", "cudnn", trainer__cudnn_benchmark=True)
    product = module("axes").product_of(plain(), [deterministic, autotune])
    assert {each.name for each in product.combinations} == {"as it is", "deterministic", "autotune"}
    assert (product.contradictory, product.repeated) == (1, 0)

    other, again = arm("other", "own", checkpoint__keep=6), arm("again", "twin", checkpoint__keep=5)
    product = module("axes").product_of(plain(), [FASTER, other, again])
    # faster and again are the same alone and together; other contradicts both
    assert len(product.combinations) == 3
    assert (product.contradictory, product.repeated) == (3, 2)


def test_a_journal_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    journal = module("journal")
    file = tmp_path / "scan.jsonl"
    first = journal.Journal(file, SEARCH)
    first.add(journal.Scanned("b", 2.0, 1.0, 0.1, 3.0))
    first.add(journal.Scanned("a", problem="it diverged"))
    whole = file.read_text()
    with file.open("a") as open_file:
        open_file.write('{"name": "c", "basel')
    again = journal.Journal(file, SEARCH)
    assert [(each.name, each.problem) for each in again.scanned] == [("b", ""), ("a", "it diverged")]
    assert again.scanned[0].speedup == 2.0
    assert again.left(["c", "b", "a"]) == ["c"]
    assert file.read_text() == whole
    again.add(journal.Scanned("c", 2.0, 1.0))
    assert journal.Journal(file, SEARCH).left(["a", "b", "c"]) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({**SEARCH, "combinations": ["a"]}) + "\n", "another search, by its combinations"),
        (json.dumps({"config": SEARCH["config"]}) + "\n", "another search, by its combinations"),
        (json.dumps(SEARCH) + '\n{"title": "b"}\n', "not the file of a scan"),
        ("name: mnist\n", "not the file of a scan"),
    ],
)
def test_the_file_of_another_search_is_refused_and_left_as_it_is(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(module("journal").OtherSearch, match=reason):
        module("journal").Journal(file, SEARCH)
    assert file.read_text() == text


def test_a_scan_measures_each_combination_once_over_as_many_calls_as_it_takes(tmp_path: Path) -> None:
    measuring, journal = module("measuring"), module("journal")
    bench = played(noise=0.01)
    bench.failing = lambda job: "no room" if '"max_failures":7' in job.configs[1].config_json else ""
    combinations = module("axes").product_of(plain(), [FASTER, SLOWER]).combinations
    for done in range(1, 4):
        assert not measuring.scan(
            bench, plain(), combinations, journal.Journal(tmp_path / "scan", SEARCH), 0.0, ignored
        )
        assert len(journal.Journal(tmp_path / "scan", SEARCH).scanned) == done
    assert measuring.scan(bench, plain(), combinations, journal.Journal(tmp_path / "scan", SEARCH), 60.0, ignored)
    assert bench.done["duel"] == 4
    scanned = {each.name: each for each in journal.Journal(tmp_path / "scan", SEARCH).scanned}
    assert scanned["faster"].speedup == pytest.approx(1.25, rel=0.1)
    assert scanned["slower"].problem == scanned["faster + slower"].problem == "no room"
    assert [each.name for each in module("figures").ranking(list(scanned.values()))] == ["faster", "as it is"]


def best_beside(recommended: Any, seed: int = 0) -> tuple[Any, Any]:
    bench = played(seed=seed)
    combinations = module("axes").product_of(plain(), [FASTER, SLOWER, SPOILS]).combinations
    ranked = sorted(combinations, key=lambda each: -speed(each.config.model_dump()))
    trainings = Trainings(bench, Clock(1e9, 0.0, PlayedClock()), plain())
    trainings.seeds = [0, 1, 2]
    final = module("measuring").Final(bench, recommended, trainings, ignored)
    return final, final.find_best(ranked, at_once=2, pairs=8, duels=3)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_the_fastest_that_comes_out_as_well(seed: int) -> None:
    final, best = best_beside(plain(), seed)
    assert best.name == "faster"
    assert not best.is_recommended
    assert best.share.value == pytest.approx(1 / 1.25, rel=0.05)
    assert best.share.low <= best.share.value <= best.share.high < 0.95
    assert best.quality.is_fine
    # the two fastest spoil the accuracy, so that the next two meet the recommended config as well
    assert list(best.rejected) == ["faster + spoils", "spoils"]
    assert all(quality.verdict == "worse" for quality in best.rejected.values())
    assert len(final.finalists) == 4
    text = "\n".join(module("figures").final_lines(final.finalists, best))
    assert "not taken: spoils: val/accuracy worse" in text
    assert "at least 0.95: not met" in text


def test_where_the_recommended_config_is_the_best_its_share_is_about_one() -> None:
    final, best = best_beside(FASTER.config(plain()).with_overrides({"tuneup": None, "name": "tuned"}))
    assert best.is_recommended
    assert best.share.value == pytest.approx(1.0, rel=0.05)
    assert "itself" in "\n".join(module("figures").final_lines(final.finalists, best))


@pytest.mark.parametrize(
    ("share", "verdict"), [((0.99, 0.96, 1.01), "met"), ((0.9, 0.88, 0.94), "not met"), ((0.96, 0.94, 0.98), "decided")]
)
def test_the_verdict_on_the_speed_is_that_of_the_interval(share: Any, verdict: str) -> None:
    found = module("figures").speed_verdict(importlib.import_module("measuring").Interval(*share))
    assert found.endswith(verdict) if verdict == "met" else verdict in found
    assert found == "met" or verdict != "met"


def test_the_time_of_the_search_is_start_up_and_samples_by_speed() -> None:
    figures, scanned = module("figures"), module("journal").Scanned
    # the second one had its turn while the machine was half as fast
    found = [
        scanned("a", 0.001, 0.0005, 2.0, 4.0),
        scanned("b", 0.002, 0.001, 6.0, 4.0),
        scanned("c", 0.001, 0.001, 0.0, 4.0),
        scanned("d", took_seconds=1.0, problem="no"),
    ]
    assert figures.undisturbed_seconds(found[:3]) == pytest.approx(0.001)
    seconds = figures.training_seconds(found, 10_000, 0.001)
    assert seconds == pytest.approx({"a": 2.0 + 5.0, "b": 6.0 + 5.0, "c": 10.0})
    combination, compiled = module("axes").Combination, toy_config(trainer__compile="default")
    configs = {"a": toy_config(), "b": compiled, "c": toy_config(), "d": toy_config(), "e": toy_config()}
    assert figures.uncompiled(found, [combination(*each) for each in configs.items()]) == {"a", "c"}
    times = figures.Times(3, 13.0, sum(seconds.values()), 5, 2.1)
    assert times.ratio == pytest.approx(0.075)
    check = module("measuring").Check(["a", "c"], 17.0, 20.4)
    text = "\n".join(figures.time_lines(times, check))
    assert "28 s, COMPUTED" in text
    assert "1.20 of what was computed" in text
    assert "0.075 of that; aimed at: at most 0.1: met" in text
    assert "not known" in "\n".join(figures.time_lines(times._replace(tuneup=None), None))
    assert ": not met" in "\n".join(figures.time_lines(times._replace(tuneup=4.0), None))


def test_what_is_concluded_from_a_part_of_the_scan_says_so() -> None:
    figures, scanned = module("figures"), module("journal").Scanned
    found = [scanned(f"{number}", 0.001, 0.001 / number, 0.1, 2.0) for number in range(1, 15)]
    text = "\n".join(figures.scan_lines(found, 20, "3"))
    assert "ONLY 14 OF 20 SO FAR" in text
    assert "12  3.00 3" in text  # its place, though only the first ten are shown
    assert "ONLY" not in "\n".join(figures.scan_lines(found, 14, None))


def test_a_rejected_one_without_a_comparison_is_told_too() -> None:
    figures, measuring = module("figures"), module("measuring")
    share = importlib.import_module("measuring").Interval(1.0, 0.97, 1.03)
    best = measuring.Best("a", False, share, Quality("same"), {"b": Quality("not measured")})
    assert "not taken: b: not measured" in figures.final_lines([], best)


def test_the_command_scans_in_parts_and_compares_with_what_is_recommended(tmp_path: Path) -> None:
    config, recommended = tmp_path / "t.yaml", tmp_path / "recommended.yaml"
    config.write_text(
        "name: own\nmodel: {name: mlp, in_features: 4, num_classes: 2}\n"
        "data: {path: 'two_kinds:build', global_batch_size: 8}\n"
        "optimizer: {name: sgd, lr: 0.05}\ntrainer: {epochs: 2, zero_grad: zero, log_every_n_steps: 50}\n"
        "tuneup: {arms: {rarer: {checkpoint.keep: 4}}, margin: 0.5,\n"
        "  skip: [compile, bf16, cache-memory, loader-1, loader-2, batch-x2, batch-x4]}\n"
    )
    (tmp_path / "two_kinds.py").write_text(TWO_KINDS)
    recommended.write_text(config.read_text().replace("zero_grad: zero", "zero_grad: set_to_none"))
    command = [
        sys.executable,
        str(BENCHMARKS / "exhaustive_search.py"),
        str(config),
        "--resume",
        str(tmp_path / "scan"),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "RAY_ADDRESS": "nowhere:1"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, timeout=300)

    part = run("--minutes", "0")
    assert part.returncode == 75, part.stderr
    assert len((tmp_path / "scan").read_text().splitlines()) == 2
    drawn = run("--minutes", "0", "--savers", "2")
    assert drawn.returncode == 75, drawn.stderr
    assert not (tmp_path / "scan.savers").read_text().splitlines()[1:]
    few = ["--savers", "2", "--finalists", "1", "--pairs", "2", "--duels", "1", "--seeds", "2", "--checked", "1"]
    done = run("--recommended", str(recommended), "--tuneup-seconds", "1", "--json", *few)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["combinations"] == len(found["scan"]) == 4
    assert found["recommended"] == "set-to-none"
    assert len(found["finalists"]) >= 1
    assert found["best"]["share"][0] > 0
    assert len(found["check"]["names"]) == 1
    assert found["times"]["search"] > 0
    # checkpointing of either kind, accumulation or both, beside each of the four
    assert (found["savers"]["combinations"], found["savers"]["drawn"], found["savers"]["failed"]) == (4 * 5, 2, 0)
    assert len((tmp_path / "scan.savers").read_text().splitlines()) == 3
    assert found["savers"]["ratio"][0] < 1 / found["times"]["search"]


TWO_KINDS = """\
import torch
from torch.utils.data import Dataset

class Points(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.full((4,), float(index % 2)), index % 2

def build():
    return Points(96), Points(32)
"""
