"""Where the words beside the points of a chart go, so that none lies over another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.tracking.curves import Place

LETTER, LINE = 6.9, 13.0
"""Width of a letter and height of a line at the size that charts are written in."""
GAP = 9.0
"""From the middle of a point to its words."""
SHIFTS = (0, -14, 14, -28, 28, -42, 42, -56, 56, -70, 70)


@dataclass(frozen=True)
class Label:
    """A place for words: where their line begins, ends or has its middle, by `anchor`."""

    x: float
    y: float
    anchor: str
    is_far: bool
    """Whether a line has to lead to it."""


@dataclass(frozen=True)
class _Box:
    left: float
    right: float
    top: float
    bottom: float

    def over(self, other: "_Box") -> float:
        """The area that both have."""
        across = min(self.right, other.right) - max(self.left, other.left)
        upwards = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(across, 0.0) * max(upwards, 0.0)


class Room:
    """What of a chart is still free.

    Args:
        points: where the points are.
    """

    def __init__(self, left: float, right: float, top: float, bottom: float, points: Sequence[Place]) -> None:
        self._frame = _Box(left, right, top, bottom)
        self._points = [_Box(x - 6, x + 6, y - 6, y + 6) for x, y in points]
        self._taken: list[_Box] = []

    def place(self, words: str, point: Place) -> Label:
        """The nearest free place beside a point; where there is none, the one that is most free."""
        width = LETTER * len(words)
        label, box = min(
            ((each, _box(each, width)) for each in _candidates(*point, width)), key=lambda pair: self._cost(pair[1])
        )
        self._taken.append(box)
        return label

    def _cost(self, box: _Box) -> float:
        outside = (box.right - box.left) * (box.bottom - box.top) - box.over(self._frame)
        hidden = sum(box.over(each) for each in self._points)
        return round(10 * outside + 10 * hidden + sum(box.over(each) for each in self._taken), 3)


def _candidates(x: float, y: float, width: float) -> Iterator[Label]:
    """The nearest first."""
    for shift in SHIFTS:
        far = abs(shift) > LINE + 2
        out = GAP if not far else GAP + 12
        yield Label(x + out, y + 4 + shift, "start", far)
        yield Label(x - out, y + 4 + shift, "end", far)
        if shift == 0:
            yield Label(x, y - 11, "middle", False)
            yield Label(x, y + 19, "middle", False)


def _box(label: Label, width: float) -> _Box:
    left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return _Box(left, left + width, label.y - LINE + 3, label.y + 3)
