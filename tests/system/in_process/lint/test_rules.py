"""Each rule finds the fault that was planted, at its place, and nothing else; in the repaired twin it finds nothing."""

import logging
import re

import pytest

from paceline.linting.examining import lint
from paceline.linting.rules import RULES
from support.golden import Golden
from support.lint import plants
from support.lint.cases import MODEL_CASES, Case
from support.lint.config_cases import CONFIG_CASES
from support.logged import Logged
from support.toys import fit

CASES = [*MODEL_CASES, *CONFIG_CASES]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_a_planted_fault_is_found_and_its_twin_is_silent(case: Case, logged: Logged, golden: Golden) -> None:
    with logged.at_level(logging.DEBUG, "paceline.linting"):  # rules that fail, and models that cannot be run
        found = lint(plants.config(**case.faulty))
    assert {(finding.rule, finding.severity) for finding in found} == {(case.rule, case.severity)}, logged.text
    assert all(re.search(case.place, finding.place) for finding in found), found
    assert lint(plants.config(**case.repaired)) == []
    golden("\n".join(dict.fromkeys(f"{finding.reason} ({finding.hint})" for finding in found)))


ELSEWHERE = {"could-not-be-run", "images-loaded-in-training-process", "float32-where-bf16-is-fast"}
"""Rules that need more than a net of a few lines: see test_odd_models.py."""


def test_every_rule_has_a_planted_fault() -> None:
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    assert len(rules) == len(RULES) >= 25
    assert rules == {case.rule for case in CASES} | ELSEWHERE


ENDS_TRAINING = {
    "batchnorm-on-single-samples": "more than 1 value per channel",
    "in-place-breaks-backward": "modified by an inplace operation",
    "loss-without-gradient": "has no gradient",
}


@pytest.mark.parametrize("case", [case for case in CASES if case.rule in ENDS_TRAINING], ids=lambda case: case.rule)
def test_errors_that_are_said_to_end_training_do(case: Case) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=ENDS_TRAINING[case.rule]):
        fit(plants.config(**case.faulty))
    fit(plants.config(**case.repaired))
