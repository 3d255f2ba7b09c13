"""Each rule finds the fault that was planted, at its place, and nothing else; in the repaired twin it finds nothing."""

import re
from typing import Any

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.study.lint import lint
from paceline.study.lint.rules import RULES
from study.lint import plants
from study.lint.cases import HERE, MODEL_CASES, Case, model
from study.lint.config_cases import CONFIG_CASES
from support.ranks import run_ranks
from support.toys import fit

CASES = [*MODEL_CASES, *CONFIG_CASES]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_a_planted_fault_is_found_and_its_repaired_twin_is_silent(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "paceline.study.lint")  # which tells of rules that fail, and of models that cannot be run
    found = lint(plants.config(**case.faulty))
    told = f"{found}\n{caplog.text}"
    assert {(finding.rule, finding.severity) for finding in found} == {(case.rule, case.severity)}, told
    assert all(re.search(case.place, finding.place) for finding in found), found
    assert lint(plants.config(**case.repaired)) == []


@pytest.mark.parametrize("net", [plants.printed, plants.logged])
def test_a_tensor_that_another_library_turns_into_text_is_found(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.experimental.tqdm_ray import safe_print  # Ray puts it in the place of `print` once it shows a bar

    monkeypatch.setattr("builtins.print", safe_print)
    (found,) = lint(plants.config(**model(net)))
    assert found.rule == "tensor-is-printed"
    assert re.search(HERE, found.place)


ELSEWHERE = {
    "could-not-be-run": "elsewhere",
    "images-loaded-in-training-process": "elsewhere",
    "float32-where-bf16-is-fast": "elsewhere",
}
"""Rules that need more than a net of a few lines."""


def test_every_rule_has_a_planted_fault() -> None:
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    assert len(rules) == len(RULES) >= 25
    assert rules == {case.rule for case in CASES} | set(ELSEWHERE)


ENDS_TRAINING = {
    "batchnorm-on-single-samples": "more than 1 value per channel",
    "in-place-breaks-backward": "modified by an inplace operation",
    "loss-without-gradient": "does not require grad",
}


@pytest.mark.parametrize("case", [case for case in CASES if case.rule in ENDS_TRAINING], ids=lambda case: case.rule)
def test_errors_that_are_said_to_end_training_do(case: Case) -> None:
    with pytest.raises((RuntimeError, ValueError), match=ENDS_TRAINING[case.rule]):
        fit(plants.config(**case.faulty))
    fit(plants.config(**case.repaired))


def test_ddp_fails_on_parameters_that_are_never_used() -> None:
    config = plants.config(plants.Unused, scaling__num_workers=2, trainer__epochs=2)
    assert [(finding.rule, finding.severity) for finding in lint(config)] == [("never-used", "error")]
    assert "Expected to have finished reduction" in str(run_ranks(_fit, 2, config))


def _fit(ranks: Ranks, config: Any) -> str:
    try:
        fit(config, ranks)
    except RuntimeError as error:
        return str(error)
    return "no error"
