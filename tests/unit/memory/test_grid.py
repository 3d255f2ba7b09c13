"""The grid of memory savers, the cheapest config that fits, and sizes on the command line."""

from pathlib import Path

import pytest

from paceline import ConfigError, cli
from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.config.experiment import validate
from paceline.memory.grid import grid_of, micro_batch_sizes
from paceline.memory.plan import GridPoint, cheapest_of

TREE = {
    "name": "own",
    "model": {"path": "own:build"},
    "data": {"path": "own:data", "global_batch_size": 96},
    "trainer": {"gradient_accumulation_steps": 4},
    "scaling": {"num_workers": 2, "use_gpu": False},
}


def test_the_grid_keeps_the_global_batch_and_says_each_config_once() -> None:
    config = validate(TREE)
    assert micro_batch_sizes(config) == [48, 24, 12, 6, 3]
    made = grid_of(config)
    assert len(made) == 5 * 2 * 3
    for overrides in made.values():
        sizes = batch_sizes(config.with_overrides(overrides))
        assert isinstance(sizes, BatchSizes)
        assert sizes.global_batch_size == 96
    first = next(iter(made.values()))
    assert first["trainer.precision"] == "32-true"
    assert first["trainer.activation_checkpointing"] == "none"
    with pytest.raises(ConfigError):
        config.with_overrides({"data.micro_batch_size": 48})  # without the accumulation that follows


def test_the_cheapest_changes_the_least() -> None:
    def point(size: int, mode: str, fits: bool, tight: bool = False) -> GridPoint:
        overrides = {
            "data.micro_batch_size": size,
            "trainer.precision": "32-true",
            "trainer.activation_checkpointing": mode,
        }
        return GridPoint(overrides, 0, fits, tight)

    plain, barely, roomy, checkpointed = (
        point(64, "none", False),
        point(32, "none", True, tight=True),
        point(16, "none", True),
        point(64, "full", True),
    )
    assert cheapest_of([plain, barely, roomy, checkpointed]) is roomy
    assert cheapest_of([plain, barely, checkpointed]) is barely
    assert cheapest_of([plain, checkpointed]) is checkpointed
    assert cheapest_of([plain]) is None


@pytest.mark.parametrize("size", ["much", "0", "-1GiB", "3 cm"])
def test_memory_that_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.run(["plan", "own.yaml", f"--memory={size}"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "argument", ["trainer.precisoin=bf16-mixed", "data.global_batch_size=255", "model.path=nowhere:x"]
)
def test_a_wrong_config_ends_with_2(tmp_path: Path, argument: str) -> None:
    (tmp_path / "own.yaml").write_text("name: own\nmodel: {name: mlp}\ndata: {name: mnist5k}\n")
    assert cli.run(["plan", str(tmp_path / "own.yaml"), "scaling.num_workers=2", argument]) == 2


def test_the_grid_of_a_schedule_is_that_of_its_largest_batch() -> None:
    stages = [{"samples": 0, "global_batch_size": 24}, {"samples": 100, "global_batch_size": 96}]
    data = {"path": "own:data", "batch_size_schedule": stages}
    config = validate({**TREE, "data": data})
    assert micro_batch_sizes(config) == [48, 24, 12, 6, 3]
    sizes = {overrides["data.micro_batch_size"] for overrides in grid_of(config).values()}
    assert sizes == {12, 6, 3}  # 24 and 48 do not divide the first stage
