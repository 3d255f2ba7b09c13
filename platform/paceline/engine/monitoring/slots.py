"""One vector of numbers for what all ranks have to tell each other: summing it up over the ranks is the exchange.

Each rank writes into a slot of its own, and zeros elsewhere.
"""

from collections.abc import Mapping, Sequence

NAN = float("nan")


class Slots:
    """Which numbers stand where.

    Args:
        fields: the names of the numbers that each rank tells, in order of rank.
    """

    def __init__(self, fields: Sequence[Sequence[str]]) -> None:
        self._fields = fields
        self._width = sum(map(len, fields))
        self._starts = [sum(map(len, fields[:rank])) for rank in range(len(fields))]

    def pack(self, rank: int, values: Mapping[str, float]) -> list[float]:
        """The vector of one rank; what it does not tell this time is NaN."""
        before, names = self._starts[rank], self._fields[rank]
        after = self._width - before - len(names)
        return [0.0] * before + [values.get(name, NAN) for name in names] + [0.0] * after

    def unpack(self, sums: Sequence[float]) -> list[dict[str, float]]:
        """What each rank tells, from the sum of their vectors."""
        told = []
        for start, names in zip(self._starts, self._fields, strict=True):
            values = zip(names, sums[start : start + len(names)], strict=True)
            told.append({name: value for name, value in values if value == value})  # not NaN
        return told
