"""What lint finds is so: DDP fails on unused parameters, and `print` is found however it was replaced."""

from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from paceline.linting.examining import lint
from support.lint import plants
from support.lint.cases import model
from support.ranks import run_ranks
from support.toys import fit


def test_ddp_fails_on_parameters_that_are_never_used() -> None:
    config = plants.config(plants.Unused, scaling__num_workers=2, trainer__epochs=2)
    assert [(finding.rule, finding.severity) for finding in lint(config)] == [("never-used", "error")]
    assert "Expected to have finished reduction" in str(run_ranks(_fit, 2, config))


def _fit(ranks: DistContext, config: Any) -> str:
    try:
        fit(config, ranks)
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("net", [plants.printed, plants.logged])
def test_a_tensor_that_another_library_turns_into_text_is_found(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.experimental.tqdm_ray import safe_print  # Ray puts it in the place of `print` once it shows a bar

    monkeypatch.setattr("builtins.print", safe_print)
    (found,) = lint(plants.config(**model(net)))
    assert found.rule == "tensor-is-printed"
