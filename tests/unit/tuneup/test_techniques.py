"""Which techniques are tried, and what each of them changes."""

import shlex
from dataclasses import replace
from typing import Any, get_args

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch, Rule
from paceline.batch_scaling.earlier_study import EarlierStudy
from paceline.batch_scaling.lr_rules import LrRules
from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.config.derived import derive
from paceline.config.overrides import parse_override
from paceline.config.technique_names import BOTTLENECKS, TECHNIQUES, is_technique
from paceline.config.tuneup import NOT_AMONG, SKIPPED
from paceline.profiling.bottleneck import Kind
from paceline.tuneups.combinations import KNEE, best_of_families, merged, together
from paceline.tuneups.facts import TuneupFacts
from paceline.tuneups.preview import rows_of
from paceline.tuneups.techniques import (
    HAS_ALREADY,
    Technique,
    batch_overrides,
    fix_technique,
    techniques_for,
    untried_fixes,
    with_fixes,
    within_reach,
)
from support.batch_scaling.findings import OWN, findings
from support.golden import Golden
from support.toys import toy_config

FACTS = TuneupFacts(
    device_type="cpu",
    world_size=1,
    cores=2,
    parameters=1000,
    has_convolutions=True,
    redundant_biases=1,
    blocks=2,
    is_sliced=False,
    train_samples=4000,
    validation_samples=1000,
)
BARE = replace(FACTS, has_convolutions=False, redundant_biases=0, blocks=0, is_sliced=True, train_samples=600)
"""Facts with which hardly anything can help."""
HELPLESS = {"cache-memory", "channels-last", "no-redundant-bias", "checkpointing-full", "batch-x8"}


def plain(**overrides: Any) -> Any:
    return toy_config(trainer__precision="32-true", trainer__zero_grad="zero", **overrides)


def tuning(**section: Any) -> Any:
    return plain().with_overrides({"tuneup": section})


def reasons(config: Any, facts: TuneupFacts = FACTS) -> dict[str, str]:
    """By technique, why it is not tried; empty where it is."""
    return {technique.name: technique.why_not for technique in techniques_for(config, facts)}


def technique(name: str, family: str = "", **overrides: Any) -> Technique:
    return Technique(name, {key.replace("__", "."): value for key, value in overrides.items()}, family or name, "why")


def batch(size: int) -> Technique:
    return technique(f"batch-{size}", "batch", data__global_batch_size=size)


def in_pieces(pieces: int) -> Any:
    """A config whose batch goes through the model in so many pieces of 4."""
    sizes = {"data.micro_batch_size": 4, "trainer.gradient_accumulation_steps": pieces, "data.global_batch_size": None}
    return plain().with_overrides({**sizes, "optimizer.lr_scaling": "none"})


def test_each_technique_that_is_tried_gives_a_valid_config_that_differs() -> None:
    config = plain()
    techniques = techniques_for(config, FACTS)
    tried = [each for each in techniques if not each.why_not]
    assert len({each.name for each in techniques}) == len(techniques)
    assert HELPLESS | {"loader-2", "bf16", "compile", "log-every-50"} <= {each.name for each in tried}
    assert all(each.config(config) != config for each in tried)
    assert all(each.why for each in techniques)


@pytest.mark.parametrize(
    ("cores", "usable", "workers", "device", "threads"),
    [(1, 8, 1, "cpu", 8), (1, 8, 2, "cpu", 4), (3, 8, 2, "cpu", 4), (4, 8, 2, "cpu", 0), (1, 8, 1, "cuda", 0)],
)
def test_a_worker_on_a_cpu_may_compute_on_its_share_of_the_cores(
    cores: int, usable: int, workers: int, device: str, threads: int
) -> None:
    facts = replace(FACTS, cores=cores, usable_cores=usable, world_size=workers, device_type=device)
    config = plain(scaling__num_workers=workers, scaling__cpus_per_worker=cores)
    (found,) = (each for each in techniques_for(config, facts) if each.name == "all-cores")
    assert bool(found.why_not) == (not threads)
    assert not threads or found.config(config).scaling.cpus_per_worker == threads


def test_cores_that_others_may_need_are_not_taken() -> None:
    facts = replace(FACTS, cores=1, usable_cores=8)
    assert not reasons(plain(), facts)["all-cores"]
    assert reasons(plain(), replace(facts, shares_machines=True))["all-cores"]
    sweep = {"space": {"optimizer.lr": [0.1, 0.2]}}
    assert reasons(plain(sweep=sweep), facts)["all-cores"]


def test_a_technique_that_cannot_help_here_is_not_tried(golden: Golden) -> None:
    told = {name: why for name, why in reasons(plain(), BARE).items() if why}
    assert HELPLESS | {"fp16", "exchange-bf16"} <= set(told)
    config = plain().with_overrides({"trainer.zero_grad": "set_to_none", "trainer.log_every_n_steps": 100})
    told |= {name: reasons(config)[name] for name in ("set-to-none", "log-every-50")}
    contradicting = {"autotune": {"trainer.cudnn_benchmark": True}}
    config = plain(trainer__deterministic=True).with_overrides(
        {"tuneup": {"techniques": contradicting, "skip": ["compile"]}}
    )
    told |= {name: reasons(config)[name] for name in ("autotune", "compile")}
    assert told["compile"] == SKIPPED
    assert all(told.values())
    golden("\n".join(f"{name}: {why}" for name, why in told.items()))


def test_custom_techniques_come_first_and_replace_known_ones_of_their_name() -> None:
    own = {"mine": {"optimizer.lr": 0.2}, "bf16": {"trainer.precision": "bf16-mixed", "optimizer.lr": 0.3}}
    found = techniques_for(tuning(techniques=own), FACTS)
    assert [each.name for each in found[:2]] == ["mine", "bf16"]
    assert (found[0].computes, found[1].overrides) == ("differently", own["bf16"])
    assert [each.name for each in found].count("bf16") == 1


def test_no_larger_batch_is_tried_where_the_module_sets_the_learning_rate() -> None:
    own = {"task": {"path": "paceline.adapters:LightningTask", "args": {"configure_optimizers": True}}}
    found = reasons(plain().with_overrides(own))
    assert {name for name in found if name.startswith("batch-x")} == {"batch-x2"}
    assert found["batch-x2"]
    assert "fused-optimizer" not in found
    own["task"]["args"] = {"configure_optimizers": False}
    assert not reasons(plain().with_overrides(own))["batch-x2"]


@pytest.mark.parametrize(("optimizer", "rule"), [("sgd", "linear"), ("adamw", "sqrt"), ("lamb", "sqrt")])
def test_a_larger_batch_takes_the_learning_rate_along(optimizer: str, rule: str) -> None:
    config = plain().with_overrides({"optimizer": {"name": optimizer, "lr": 0.01}, "trainer.epochs": 10})
    larger = config.with_overrides(batch_overrides(config, 16, 8))
    assert larger.optimizer.lr_scaling == rule
    assert derive(larger, None).lr == pytest.approx(0.01 * (8 if rule == "linear" else 8**0.5))
    assert larger.lr_scheduler.warmup_epochs == 1.0
    assert derive(config.with_overrides(batch_overrides(config, 16, 1)), None).lr == pytest.approx(0.01)


def test_a_larger_batch_by_adascale_keeps_the_micro_batches_that_it_compares() -> None:
    config = in_pieces(2)
    larger = config.with_overrides(batch_overrides(config, 8, 4, "adascale"))
    assert (larger.optimizer.lr_scaling, larger.data.micro_batch_size) == ("adascale", 4)
    assert larger.lr_scheduler.warmup_epochs is None
    whole = plain(optimizer__lr_scaling="none")
    assert whole.with_overrides(batch_overrides(whole, 16, 4, "adascale")).data.micro_batch_size == 16
    on_two = config.with_overrides({"scaling.num_workers": 2, "data.micro_batch_size": 2})
    assert on_two.with_overrides(batch_overrides(on_two, 8, 4, "adascale")).data.micro_batch_size is None


def test_the_rule_of_the_config_stays_with_a_larger_batch_whatever_a_study_has_found() -> None:
    config = in_pieces(2).with_overrides({"optimizer.lr_scaling": "linear", "optimizer.base_batch_size": 8})
    larger = config.with_overrides(batch_overrides(config, 8, 4, "adascale"))
    assert (larger.optimizer.lr_scaling, larger.data.micro_batch_size) == ("linear", None)


def test_two_halves_are_not_tried_where_the_config_has_them() -> None:
    assert reasons(in_pieces(2))["accumulation-2"] == HAS_ALREADY
    assert not reasons(in_pieces(1))["accumulation-2"]


def test_a_dry_run_shows_overrides_that_can_be_pasted() -> None:
    overrides = {
        "data.micro_batch_size": None,
        "data.pin_memory": True,
        "data.cache": "none",
        "optimizer.betas": [0, 1],
    }
    [row] = rows_of([Technique("own", overrides, "own", "why")])
    assert dict(parse_override(text) for text in shlex.split(row[2])) == overrides
    assert row[2].startswith("data.micro_batch_size=null data.pin_memory=true data.cache=none")


def test_larger_pieces_of_a_batch_are_tried_where_it_has_several() -> None:
    assert reasons(plain())["micro-batch-x2"]
    config = in_pieces(6)
    techniques = {
        each.name: each for each in techniques_for(config, FACTS) if each.family == "micro-batch" and not each.why_not
    }
    assert set(techniques) == {"micro-batch-x2", "accumulation-2"}  # six pieces do not go four at a time
    before, after = batch_sizes(config), batch_sizes(techniques["micro-batch-x2"].config(config))
    assert isinstance(after, BatchSizes)
    assert (after.micro_batch_size, after.gradient_accumulation_steps) == (8, 3)
    assert after.global_batch_size == before.global_batch_size


@pytest.mark.parametrize(("normalises", "computes"), [(False, "same"), (True, "differently")])
def test_pieces_of_another_size_compute_the_same_but_for_batch_normalisation(normalises: bool, computes: str) -> None:
    techniques = techniques_for(in_pieces(4), replace(FACTS, normalises_batches=normalises))
    assert {each.computes for each in techniques if each.family == "micro-batch"} == {computes}


def test_the_names_that_may_be_skipped_are_those_of_all_techniques() -> None:
    large = replace(FACTS, cores=16, train_samples=10**6, device_type="cuda", world_size=2)
    tried = [*techniques_for(plain(), replace(FACTS, cores=1, train_samples=10)), *techniques_for(in_pieces(64), large)]
    assert {each.name for each in tried} == set(TECHNIQUES)
    assert {kind.replace("_", "-") for kind in get_args(Kind)} == set(BOTTLENECKS)
    assert all(is_technique(f"fix-{kind}-{number}") for kind in BOTTLENECKS for number in (1, 12))


# Several together


def test_of_batches_the_knee_is_chosen_and_of_other_families_the_fastest() -> None:
    gained = [(batch(64), 1.5), (batch(128), 2.0 * KNEE + 0.01), (batch(256), 2.0)]
    loading = [(technique("loader", "loading"), 1.2), (technique("cache", "loading"), 3.0)]
    assert [each.name for each in best_of_families([*gained, *loading])] == ["cache", "batch-128"]


def test_batch_sizes_and_their_rules_are_those_of_a_scale_study() -> None:
    config = plain(optimizer__lr_scaling="none", data__global_batch_size=OWN)
    by_size: tuple[tuple[int, Rule], ...] = ((64, "linear"), (128, "none"), (256, "sqrt"))
    critical = CriticalBatch(200.0, 200.0, 200.0, ((0, 200.0),))
    study = EarlierStudy("the-study", replace(findings(), critical=critical, rules=LrRules(by_size), branches=()))
    found = {
        each.overrides["data.global_batch_size"]: each
        for each in techniques_for(config, replace(FACTS, train_samples=10**6, scale_study=study))
        if each.family == "batch"
    }
    assert list(found) == [64, 128, 256, 512]
    assert [each.overrides.get("optimizer.lr_scaling") for each in found.values()] == ["linear", None, "sqrt", None]
    assert [bool(each.why_not) for each in found.values()] == [False, False, False, True]
    assert "the-study" in found[512].why_not
    fixes = [fix_technique(f"fix-small-batch-{size}", {"data.global_batch_size": size}, "why") for size in (256, 512)]
    asked = technique("mine", data__global_batch_size=512)
    assert [bool(each.why_not) for each in within_reach([*fixes, asked], study)] == [False, True, False]
    assert within_reach(fixes, None) == fixes


@pytest.mark.parametrize(
    ("techniques", "taken"),
    [
        (
            [technique("exact", trainer__deterministic=True), technique("autotune", trainer__cudnn_benchmark=True)],
            ["exact"],
        ),
        ([technique("slow", optimizer__lr=0.2, data__drop_last=True), technique("fast", optimizer__lr=0.3)], ["slow"]),
        ([technique("slow", optimizer__lr=0.2), technique("alike", optimizer__lr=0.2)], ["slow", "alike"]),
    ],
    ids=["contradicting", "same field", "same value"],
)
def test_techniques_that_do_not_go_together_are_left_out(techniques: list[Technique], taken: list[str]) -> None:
    config, found = together(plain(), [*techniques, batch(64)])
    assert [each.name for each in found] == [*taken, "batch-64"]
    assert config == plain().with_overrides(merged(found))


# Fixes of the bottleneck


def test_fixes_come_first_and_none_is_tried_twice() -> None:
    techniques = techniques_for(plain(), FACTS)
    rarer = fix_technique("fix-logging-1", {"trainer.log_every_n_steps": 50}, "why")
    larger = fix_technique("fix-small-batch-1", {"data.global_batch_size": 32, "optimizer.lr": 0.2}, "why")
    found = with_fixes(techniques, [rarer, larger], plain())
    assert [each.name for each in found[:2]] == ["log-every-50", "fix-small-batch-1"]
    assert len(found) == len(techniques) + 1
    (same,) = untried_fixes(found, [rarer, larger], plain()).items()
    assert (same[0], "log-every-50" in same[1]) == ("fix-logging-1", True)
    assert (larger.family, larger.computes) == ("batch", "differently")
    assert (rarer.family, rarer.computes) == ("fix-logging-1", "same")


def test_a_custom_technique_comes_before_a_fix_and_replaces_one_of_its_name() -> None:
    config = tuning(techniques={"fix-data-1": {"optimizer.lr": 0.3}})
    fixes = [fix_technique(f"fix-data-{n}", {"data.num_workers": 3 + n}, "why") for n in (1, 2)]
    found = with_fixes(techniques_for(config, FACTS), fixes, config)
    assert [each.name for each in found[:2]] == ["fix-data-1", "fix-data-2"]
    assert [each.overrides for each in found if each.name == "fix-data-1"] == [{"optimizer.lr": 0.3}]


def test_only_what_is_named_is_tried() -> None:
    config = tuning(
        only=["log-every-50", "mine", "fix-data-2"],
        techniques={"mine": {"optimizer.lr": 0.2}, "other": {"optimizer.lr": 0.3}},
    )
    fixes = [fix_technique(f"fix-data-{number}", {"data.num_workers": 2 + number}, "why") for number in (1, 2)]
    found = {each.name: each.why_not for each in with_fixes(techniques_for(config, FACTS), fixes, config)}
    assert {name for name, why_not in found.items() if not why_not} == {"log-every-50", "mine", "fix-data-2"}
    assert found["other"] == found["bf16"] == NOT_AMONG


def test_a_fix_that_is_skipped_or_contradicts_the_config_is_not_tried() -> None:
    config = tuning(skip=["log-every-50", "fix-data-1"])
    fixes = [
        fix_technique("fix-logging-1", {"trainer.log_every_n_steps": 50}, "why"),
        fix_technique("fix-data-1", {"data.prefetch_factor": 5, "data.num_workers": 3}, "why"),
    ]
    found = {each.name: each.why_not for each in with_fixes(techniques_for(config, FACTS), fixes, config)}
    assert found["log-every-50"] == SKIPPED
    assert not [name for name in found if name.startswith("fix-")]
    assert list(untried_fixes(with_fixes(techniques_for(config, FACTS), fixes, config), fixes, config)) == [
        "fix-logging-1"
    ]
    config = plain(trainer__deterministic=True)
    fix = fix_technique("fix-data-1", {"trainer.cudnn_benchmark": True}, "why")
    assert with_fixes(techniques_for(config, FACTS), [fix], config) == techniques_for(config, FACTS)
    assert list(untried_fixes(techniques_for(config, FACTS), [fix], config)) == ["fix-data-1"]


def test_a_batch_size_schedule_is_kept() -> None:
    stages = [{"samples": 0, "global_batch_size": 16}, {"samples": 100, "global_batch_size": 64}]
    config = plain(data__global_batch_size=None, data__batch_size_schedule=stages, data__micro_batch_size=8)
    found = reasons(config)
    assert all(why_not for name, why_not in found.items() if name.startswith(("batch-x", "micro-batch-x")))
    assert found["set-to-none"] == ""
