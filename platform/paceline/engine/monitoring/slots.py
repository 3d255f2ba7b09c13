"""Exchange of numbers between all ranks by the sum of one vector.

Each rank writes into a slot of its own, and zeros elsewhere. The sum over the ranks then holds all numbers.
"""

from collections.abc import Mapping, Sequence

NAN = float("nan")


class Slots:
    """Layout of the vector: the position of each rank's numbers.

    Args:
        fields: names of the numbers that each rank reports, in order of rank.
    """

    def __init__(self, fields: Sequence[Sequence[str]]) -> None:
        self._fields = fields
        self._width = sum(map(len, fields))
        self._starts = [sum(map(len, fields[:rank])) for rank in range(len(fields))]

    def pack(self, rank: int, values: Mapping[str, float]) -> list[float]:
        """Return the vector of one rank; numbers that it does not report this time are NaN."""
        before, names = self._starts[rank], self._fields[rank]
        after = self._width - before - len(names)
        return [0.0] * before + [values.get(name, NAN) for name in names] + [0.0] * after

    def unpack(self, sums: Sequence[float]) -> list[dict[str, float]]:
        """Return the numbers that each rank reports, by name, from the sum of their vectors. NaN is left out."""
        told = []
        for start, names in zip(self._starts, self._fields, strict=True):
            values = zip(names, sums[start : start + len(names)], strict=True)
            told.append({name: value for name, value in values if value == value})  # not NaN
        return told
