"""How much of what a planted bottleneck costs its fix gives back."""

from statistics import mode

from paceline.engine.dist_context import DistContext
from paceline.profiling.diagnosis import diagnose
from paceline.profiling.fixes import Fix
from paceline.profiling.splitting import split_steps
from support.bottlenecks import Plant


def sample_seconds(ranks: DistContext, plant: Plant, field: str, times: int) -> tuple[dict[str, list[float]], Fix]:
    """Seconds per sample with the plant, with its first fix that changes a field, and without it; and the fix.

    Args:
        times: how often the bottleneck is looked for and each is measured; what is named most often is mended.
    """
    plant = plant.scaled(ranks)
    planted, plain = plant.config(), plant.config(is_planted=False)
    found = [diagnose(planted, lambda each: plant.build(each, ranks), 15, 4).bottleneck for _ in range(times)]
    kind = mode(each.kind for each in found)
    fixes = [fix for each in found if each.kind == kind for fix in each.fixes if field in fix.overrides]
    assert fixes, [each.reason for each in found]
    fix = fixes[0]
    fixed = planted.with_overrides(fix.overrides)
    seconds: dict[str, list[float]] = {"planted": [], "fixed": [], "plain": []}
    for _ in range(times):
        seconds["planted"].append(split_steps(plant.build(planted, ranks), 10, 3).sample_seconds)
        # as many steps as are needed to see one log
        seconds["fixed"].append(split_steps(plant.build(fixed, ranks), 50, 5).sample_seconds)
        seconds["plain"].append(split_steps(plant.build(plain, ranks, is_planted=False), 10, 3).sample_seconds)
    return seconds, fix


def recovered(seconds: dict[str, list[float]]) -> float:
    """Share of the loss that the fix gives back, of the shortest of each: what runs beside only adds time."""
    planted, fixed, plain = (min(seconds[key]) for key in ("planted", "fixed", "plain"))
    return (planted - fixed) / (planted - plain)
