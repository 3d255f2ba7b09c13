"""Which techniques are tried, and what each of them changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.config.technique_names import BOTTLENECKS, TECHNIQUES, is_technique
from paceline.study.step_split.bottleneck import Kind
from paceline.study.tuneup.arms import Arm, arms_for, batch_overrides, fix_arm, with_fixes
from paceline.study.tuneup.choosing import KNEE, best_of_families, merged, together
from paceline.study.tuneup.facts import Facts
from support.toys import toy_config

FACTS = Facts(
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


def reasons(config: Any, facts: Facts = FACTS) -> dict[str, str]:
    return {arm.name: arm.why_not for arm in arms_for(config, facts)}


def plain(**overrides: Any) -> Any:
    return toy_config(trainer__precision="32-true", trainer__zero_grad="zero", **overrides)


def test_each_technique_that_is_tried_gives_a_valid_config_that_differs() -> None:
    config = plain()
    arms = arms_for(config, FACTS)
    tried = [arm for arm in arms if not arm.why_not]
    assert len({arm.name for arm in arms}) == len(arms)
    assert {"loader-2", "cache-memory", "batch-x4", "bf16", "channels-last", "compile"} <= {arm.name for arm in tried}
    assert all(arm.config(config) != config for arm in tried)
    assert all(arm.why for arm in arms)


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"is_sliced": True}, "cache-memory", "in memory already"),
        ({"has_convolutions": False}, "channels-last", "no convolution"),
        ({"redundant_biases": 0}, "no-redundant-bias", "no bias"),
        ({"blocks": 0}, "checkpointing-full", "no repeated blocks"),
        ({"train_samples": 600}, "batch-x8", "fewer than 8 steps"),
        ({}, "fp16", "for GPUs"),
        ({}, "exchange-bf16", "one process"),
        ({}, "log-every-50", ""),
    ],
)
def test_a_technique_that_cannot_help_here_says_why(changes: dict[str, Any], name: str, reason: str) -> None:
    told = reasons(plain(), replace(FACTS, **changes))[name]
    assert reason in told
    assert bool(told) == bool(reason)


def test_what_the_config_has_already_is_not_tried_again() -> None:
    config = plain().with_overrides({"trainer.zero_grad": "set_to_none", "trainer.log_every_n_steps": 100})
    told = reasons(config)
    assert "already" in told["set-to-none"]
    assert "already" in told["log-every-50"]


def test_ones_own_techniques_stand_beside_the_known_ones_and_in_their_place() -> None:
    own = {"mine": {"optimizer.lr": 0.2}, "bf16": {"trainer.precision": "bf16-mixed", "optimizer.lr": 0.3}}
    config = plain().with_overrides({"tuneup": {"arms": own, "skip": ["compile"]}})
    arms = {arm.name: arm for arm in arms_for(config, FACTS)}
    assert arms["mine"].computes == "differently"
    assert arms["bf16"].overrides == own["bf16"]
    assert "tuneup.skip" in arms["compile"].why_not


def test_one_that_contradicts_the_config_tells_the_configs_own_reason() -> None:
    config = plain().with_overrides({"trainer.deterministic": True})
    told = reasons(config.with_overrides({"tuneup": {"arms": {"autotune": {"trainer.cudnn_benchmark": True}}}}))
    assert "deterministic" in told["autotune"]


@pytest.mark.parametrize(("optimizer", "rule"), [("sgd", "linear"), ("adamw", "sqrt"), ("lamb", "sqrt")])
def test_a_larger_batch_takes_the_learning_rate_along(optimizer: str, rule: str) -> None:
    from paceline.config.derived import derive

    config = plain().with_overrides({"optimizer": {"name": optimizer, "lr": 0.01}, "trainer.epochs": 10})
    larger = config.with_overrides(batch_overrides(config, 16, 8))
    assert larger.optimizer.lr_scaling == rule
    expected = 0.01 * (8 if rule == "linear" else 8**0.5)
    assert derive(larger, None).lr == pytest.approx(expected)
    assert larger.lr_scheduler.warmup_epochs == 1.0
    assert derive(config.with_overrides(batch_overrides(config, 16, 1)), None).lr == pytest.approx(0.01)


def arm(name: str, family: str = "", **overrides: Any) -> Arm:
    return Arm(name, {key.replace("__", "."): value for key, value in overrides.items()}, family or name, "why")


def batch(size: int) -> Arm:
    return arm(f"batch-{size}", "batch", data__global_batch_size=size)


def test_of_batches_the_knee_is_chosen_and_of_other_families_the_fastest() -> None:
    gained = [(batch(64), 1.5), (batch(128), 2.0 * KNEE + 0.01), (batch(256), 2.0)]
    loading = [(arm("loader", "loading"), 1.2), (arm("cache", "loading"), 3.0)]
    assert [each.name for each in best_of_families([*gained, *loading])] == ["cache", "batch-128"]


def test_arms_that_contradict_each_other_do_not_go_together() -> None:
    deterministic = arm("deterministic", trainer__deterministic=True)
    autotune = arm("autotune", trainer__cudnn_benchmark=True)
    config, taken = together(plain(), [deterministic, autotune, batch(64)])
    assert [each.name for each in taken] == ["deterministic", "batch-64"]
    assert config.data.global_batch_size == 64
    assert not config.trainer.cudnn_benchmark


def test_arms_that_set_the_same_field_to_different_values_do_not_go_together() -> None:
    slow, fast = arm("slow", optimizer__lr=0.2, data__drop_last=True), arm("fast", optimizer__lr=0.3)
    alike = arm("alike", optimizer__lr=0.2, trainer__zero_grad="set_to_none")
    config, taken = together(plain(), [slow, fast, alike])
    assert [each.name for each in taken] == ["slow", "alike"]
    assert config.optimizer.lr == 0.2


def test_fixes_come_first_and_none_is_tried_twice() -> None:
    arms = arms_for(plain(), FACTS)
    rarer = fix_arm("fix-logging-1", {"trainer.log_every_n_steps": 50}, "why")
    larger = fix_arm("fix-small-batch-1", {"data.global_batch_size": 32, "optimizer.lr": 0.2}, "why")
    found = with_fixes(arms, [rarer, larger], plain())
    assert [arm.name for arm in found[:2]] == ["log-every-50", "fix-small-batch-1"]
    assert len(found) == len(arms) + 1
    assert (larger.family, larger.computes) == ("batch", "differently")
    assert (rarer.family, rarer.computes) == ("fix-logging-1", "same")


def test_what_the_user_asks_for_comes_before_all_else() -> None:
    """Where there is no time for all, the first of them are tried."""
    config = plain().with_overrides({"tuneup": {"arms": {"mine": {"optimizer.lr": 0.3}}}})
    fix = fix_arm("fix-data-1", {"data.num_workers": 3}, "why")
    arms = arms_for(config, FACTS)
    assert arms[0].name == "mine"
    assert [arm.name for arm in with_fixes(arms, [fix], config)][:3] == ["mine", "fix-data-1", arms[1].name]


def test_what_is_skipped_is_not_tried_under_the_name_of_a_fix() -> None:
    config = plain().with_overrides({"tuneup": {"skip": ["log-every-50", "fix-data-1"]}})
    fixes = [
        fix_arm("fix-logging-1", {"trainer.log_every_n_steps": 50}, "why"),
        fix_arm("fix-data-1", {"data.prefetch_factor": 5, "data.num_workers": 3}, "why"),
    ]
    found = {arm.name: arm.why_not for arm in with_fixes(arms_for(config, FACTS), fixes, config)}
    assert "tuneup.skip" in found["log-every-50"]
    assert not [name for name in found if name.startswith("fix-")]


def test_the_names_that_may_be_skipped_are_those_of_all_techniques() -> None:
    small = replace(FACTS, cores=1, train_samples=10)
    large = replace(FACTS, cores=8, train_samples=10**6, device_type="cuda", world_size=2)
    tried = [*arms_for(plain(), small), *arms_for(in_pieces(plain(), 64), large)]
    assert {arm.name for arm in tried} == set(TECHNIQUES)
    assert {kind.replace("_", "-") for kind in get_args(Kind)} == set(BOTTLENECKS)
    assert all(is_technique(f"fix-{kind}-{number}") for kind in BOTTLENECKS for number in (1, 12))


def test_a_fix_that_contradicts_the_config_is_not_tried() -> None:
    config = plain(trainer__deterministic=True)
    fix = fix_arm("fix-data-1", {"trainer.cudnn_benchmark": True}, "why")
    assert with_fixes(arms_for(config, FACTS), [fix], config) == arms_for(config, FACTS)


def test_ones_own_technique_counts_rather_than_a_fix_of_its_name() -> None:
    config = plain().with_overrides({"tuneup": {"arms": {"fix-data-1": {"optimizer.lr": 0.3}}}})
    fix = fix_arm("fix-data-1", {"data.num_workers": 3}, "why")
    found = [arm for arm in with_fixes(arms_for(config, FACTS), [fix], config) if arm.name == "fix-data-1"]
    assert [arm.overrides for arm in found] == [{"optimizer.lr": 0.3}]


def test_of_two_that_set_the_same_field_the_first_counts() -> None:
    assert merged([batch(64), batch(128)]) == {"data.global_batch_size": 64}


def in_pieces(config: Any, pieces: int) -> Any:
    return config.with_overrides(
        {
            "data.micro_batch_size": 4,
            "trainer.gradient_accumulation_steps": pieces,
            "data.global_batch_size": None,
            "optimizer.lr_scaling": "none",
        }
    )


def test_larger_pieces_of_the_same_batch_are_tried_where_it_goes_through_in_several() -> None:
    whole = plain()
    assert "one piece already" in reasons(whole)["micro-batch-x2"]
    config = in_pieces(whole, 6)
    arms = {arm.name: arm for arm in arms_for(config, FACTS) if arm.family == "micro-batch" and not arm.why_not}
    assert set(arms) == {"micro-batch-x2", "accumulation-2"}  # six pieces do not go four at a time
    before, after = batch_sizes(config), batch_sizes(arms["micro-batch-x2"].config(config))
    assert isinstance(after, BatchSizes)
    assert (after.micro_batch_size, after.gradient_accumulation_steps) == (8, 3)
    assert after.global_batch_size == before.global_batch_size


def test_pieces_of_another_size_compute_the_same_but_for_batch_normalisation() -> None:
    config = in_pieces(plain(), 4)
    for normalises, computes in ((False, "same"), (True, "differently")):
        arms = arms_for(config, replace(FACTS, normalises_batches=normalises))
        assert {arm.computes for arm in arms if arm.family == "micro-batch"} == {computes}


def test_what_a_technique_drops_is_no_news(recwarn: pytest.WarningsRecorder) -> None:
    config = plain(optimizer__momentum=0.9, tuneup={"arms": {"adamw": {"optimizer.name": "adamw"}}})
    (arm,) = (arm for arm in arms_for(config, FACTS) if arm.name == "adamw")
    assert arm.why_not == ""
    assert together(config, [arm])[1] == [arm]
    assert not [each for each in recwarn if "momentum" in str(each.message)]
