"""How a plan is printed."""

import sys
from collections.abc import Iterator

from paceline.config.batch_sizes import MICRO
from paceline.display import print_rows, print_table
from paceline.study.memory.grid import CHECKPOINTING, PRECISION, Overrides
from paceline.study.memory.plan import GridPoint, MemoryPlan
from paceline.tracking.redact import redact

HEADING = ("micro batch", "precision", "checkpointing", "peak memory", "fits")


def show(plan: MemoryPlan) -> None:
    """The plan as two tables on stdout; warnings on stderr."""
    for text in plan.warnings:
        print(f"warning: {redact(text)}", file=sys.stderr)
    print_rows([(label, redact(text)) for label, text in _rows(plan)])
    print()
    print_table(HEADING, [_cells(point) for point in plan.grid])


def _rows(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{plan.parameters:,}"
    yield "FLOPs a sample", f"{plan.flops_per_sample:,} forward and backward, {plan.forward_flops_per_sample:,} forward"
    yield "peak memory", f"{size_text(plan.peak_memory_bytes)} on {plan.device} at micro batch {plan.micro_batch_size}"
    for role, size in plan.memory.items():
        yield f"  {role}", size_text(size)
    limit = plan.device_memory_bytes
    yield "device memory", "not known: give --memory" if limit is None else size_text(limit)
    yield "cheapest that fits", _settings(plan.cheapest) if plan.cheapest else "none"
    yield from plan.derived.lines()
    yield from (("approximate", note) for note in plan.notes)


def _cells(point: GridPoint) -> list[str]:
    values = [str(point.overrides[key]) for key in (MICRO, PRECISION, CHECKPOINTING)]
    return [*values, size_text(point.peak_memory_bytes), _verdict(point)]


def _verdict(point: GridPoint) -> str:
    if point.fits is None:
        return "?"
    return ("yes" if point.fits else "no") + (", barely" if point.is_tight and point.fits else "")


def _settings(overrides: Overrides) -> str:
    return " ".join(f"{key}={value}" for key, value in overrides.items())


def size_text(count: int) -> str:
    """Bytes for a reader."""
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
