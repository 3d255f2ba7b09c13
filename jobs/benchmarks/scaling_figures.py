"""What scaling.py makes of its measurements: efficiencies, ratios, tables, and the picture."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from measuring import Interval, interval, over_launches, ratios

if TYPE_CHECKING:
    from raw_ddp import Window
    from scaling_workers import ScalingTurn

    from paceline.sweeps.results.style import Picture

MOST_RATIO = 1.02
"""What a step of Paceline on Ray may take, over one of raw DDP."""
PICTURE = "scaling.png"


class Row(NamedTuple):
    """A number of workers, with the batch that grows with them (`weak`) or stays (`strong`), or each for itself."""

    mode: str
    workers: int
    global_batch_size: int
    samples_per_second: Interval
    step_seconds: float
    efficiency: Interval
    """Samples a second of each worker, over those of the fewest workers in the same round. 1: twice as many workers,
    twice as fast."""


class Comparison(NamedTuple):
    """An arm against raw DDP."""

    arm: str
    step_seconds: float
    by_clock: Interval
    """Seconds of a step over those of raw DDP in the same round."""
    by_cpu_time: Interval
    weights_difference: float
    """The largest one at the end of any launch; 0 when all were equal to the bit."""

    @property
    def verdict(self) -> str:
        """Whether a step takes no longer than it may, as far as the interval tells."""
        if self.by_clock.high <= MOST_RATIO:
            return "met"
        return "not met" if self.by_clock.low > MOST_RATIO else "not decided, the interval holds both"


def efficiency_rows(turns: Sequence["ScalingTurn"]) -> list[Row]:
    """A row for each kind of turn, compared with the fewest workers in the same round."""
    by_kind: dict[tuple[str, int], list[ScalingTurn]] = {}
    for turn in sorted(turns, key=lambda turn: turn.round):
        by_kind.setdefault((turn.mode, turn.workers), []).append(turn)
    first = min(workers for _, workers in by_kind)
    one = _each_workers(by_kind["weak", first])
    order = {"weak": 0, "strong": 1, "apart": 2}
    kinds = sorted(by_kind, key=lambda kind: (order.get(kind[0], -1), kind[1]))
    return [_row(by_kind[kind], one) for kind in kinds]


def _each_workers(turns: Sequence["ScalingTurn"]) -> list[float]:
    return [turn.samples_per_second / turn.workers for turn in turns]


def _row(turns: Sequence["ScalingTurn"], one: Sequence[float]) -> Row:
    return Row(
        turns[0].mode,
        turns[0].workers,
        turns[0].global_batch_size,
        interval([turn.samples_per_second for turn in turns]),
        statistics.median(turn.step_seconds for turn in turns),
        interval(ratios(_each_workers(turns), one)),
    )


Launch = tuple[Mapping[str, Sequence["Window"]], Mapping[str, float]]
"""By arm the windows of a launch, and how far its final weights are from the first arm's."""


def comparisons(launches: Sequence[Launch], steps: int) -> list[Comparison]:
    """Each arm against the first one.

    Args:
        steps: timed steps of a window.
    """
    names = list(launches[0][0])
    first = names[0]

    def ratio(name: str, field: str) -> Interval:
        def values(windows: Mapping[str, Sequence["Window"]], arm: str) -> list[float]:
            return [getattr(each, field) for each in windows[arm]]

        return over_launches([ratios(values(windows, name), values(windows, first)) for windows, _ in launches])

    return [
        Comparison(
            name,
            statistics.median(each.seconds / steps for windows, _ in launches for each in windows[name]),
            ratio(name, "seconds"),
            ratio(name, "cpu_seconds"),
            max(differences[name] for _, differences in launches),
        )
        for name in names
    ]


def efficiency_table(rows: Sequence[Row]) -> str:
    """As lines of text."""
    head = f"{'scaling':8} {'workers':>7} {'batch':>7} {'ms/step':>9} {'samples/s':>11} {'efficiency, 95 %':>22}"
    return "\n".join([head, *map(_line, rows)])


def _line(row: Row) -> str:
    rate, milliseconds = row.samples_per_second.value, 1000 * row.step_seconds
    return (
        f"{row.mode:8} {row.workers:7} {row.global_batch_size:7} {milliseconds:9.2f} {rate:11,.0f} "
        f"{row.efficiency.text():>22}"
    )


def comparison_table(found: Sequence[Comparison]) -> str:
    """As lines of text, with what is aimed at."""
    head = f"{'step time':21} {'ms/step':>8} {'to raw DDP':>20} {'by CPU time':>20}  final weights"
    lines = [head]
    for each in found:
        ratios_ = " ".join(f"{it.text():>20}" for it in (each.by_clock, each.by_cpu_time))
        lines.append(f"{each.arm:21} {1000 * each.step_seconds:8.3f} {ratios_}  {weights_text(each)}")
    on_ray = found[-1]
    return "\n".join([*lines, f"aimed at: {on_ray.arm} at most {MOST_RATIO}: {on_ray.verdict}"])


def weights_text(found: Comparison) -> str:
    """How far the final weights are from the first arm's."""
    return f"differ by {found.weights_difference:.1e}" if found.weights_difference else "equal to the bit"


def picture(rows: Sequence[Row], title: str) -> "Picture":
    """Throughput and efficiency over the workers, with what would be ideal."""
    from paceline.sweeps.results.charts import COLORS
    from paceline.sweeps.results.style import OTHER_COLOR, Picture, dress, plain

    drawn = Picture(9.0, 4.0)
    speeds, efficiencies = drawn.subplots(1, 2)
    one = min((row for row in rows if row.mode == "weak"), key=lambda row: row.workers)
    counts = sorted({row.workers for row in rows})
    each = one.samples_per_second.value / one.workers
    ideal: dict[str, Any] = {"color": OTHER_COLOR, "linestyle": "--", "linewidth": 1.2, "label": "ideal"}
    speeds.plot(counts, [each * count for count in counts], **ideal)
    efficiencies.plot(counts, [1.0] * len(counts), **ideal)
    for mode, color in zip(("weak", "strong", "apart"), COLORS, strict=False):
        others = [row for row in rows if row.mode == mode and row.workers > one.workers]
        if mode == "apart" and not others:
            continue
        mine = [one, *others]
        label = "each for itself" if mode == "apart" else f"{mode} scaling"
        places = [row.workers for row in mine]
        for axes, values in (
            (speeds, [row.samples_per_second for row in mine]),
            (efficiencies, [row.efficiency for row in mine]),
        ):
            middle = [value.value for value in values]
            reach = [[v.value - v.low for v in values], [v.high - v.value for v in values]]
            axes.errorbar(places, middle, reach, color=color, marker="o", capsize=3, label=label)
    for axes, label in ((speeds, "samples per second"), (efficiencies, f"efficiency against {one.workers} worker(s)")):
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.set_xticks(counts)
        axes.set_ylim(bottom=0)
        dress(axes)
    efficiencies.legend(loc="lower left", frameon=False, fontsize=9)
    drawn.suptitle(plain(title), x=0.01, ha="left", fontweight="bold", fontsize=11)
    return drawn
