"""Each rule finds the fault that was planted, at its place, and nothing else; in the repaired twin it finds nothing."""

import gc
import re
from collections.abc import Iterator

import pytest

from paceline.study.lint import lint, stand_ins
from paceline.study.lint.rules import RULES
from support.golden import Golden
from support.lint import plants
from support.lint.cases import MODEL_CASES, Case
from support.lint.config_cases import CONFIG_CASES
from support.toys import fit

CASES = [*MODEL_CASES, *CONFIG_CASES]


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> Iterator[None]:
    """Leave out what was there before: lint looks through all objects for caches, here those of all tests."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_ins.gc, "unfreeze", lambda: None)
        yield
    gc.unfreeze()


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_a_planted_fault_is_found_and_its_twin_is_silent(
    case: Case, caplog: pytest.LogCaptureFixture, golden: Golden
) -> None:
    caplog.set_level("DEBUG", "paceline.study.lint")  # reports rules that fail, and models that cannot be run
    found = lint(plants.config(**case.faulty))
    assert {(finding.rule, finding.severity) for finding in found} == {(case.rule, case.severity)}, caplog.text
    assert all(re.search(case.place, finding.place) for finding in found), found
    assert lint(plants.config(**case.repaired)) == []
    golden("\n".join(dict.fromkeys(f"{finding.reason} ({finding.cure})" for finding in found)))


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
