"""How the windows of a duel are to be laid out, so that a difference of 5 % is seen on a machine with other load.

What decides is not how long a window is, but how finely the two alternate. `tests/support/tuneup/step_times.json` has
step times of a small CNN on two cores, alone and beside one and two neighbours that load a core in bursts of about a
second. Of 1,000 replays with a planted 5 % gain, and as many with a loss, so many had the right verdict within 40
pairs:

    window of each side, undisturbed     0.12 s  0.25 s  0.5 s  1 s
    one piece, quiet                      68 %    65 %   67 %   70 %
    one piece, one neighbour              35 %    23 %   11 %    8 %
    one piece, two neighbours              7 %     5 %    5 %    5 %
    turns, quiet                          96 %   100 %  100 %  100 %
    turns, one neighbour                  67 %    83 %   95 %  100 %
    turns, two neighbours                 38 %    61 %   90 %  100 %

With turns of 1 s in all on each side, a verdict on 5 % took 8 pairs (95th percentile: 20) in the quiet, and 16 (32)
beside one or two neighbours. A planted nothing was called a difference in at most 3.5 % of the replays of any row.

In another hour, when the machine had still more to do, 32 turns decided only 94 % beside two neighbours. So windows
have a half more.

In one piece, a longer window catches more of a burst, and so does not help. In turns of 30 ms, the bursts fall on both
sides alike. Medians and low quantiles of the turns were tried instead of the total: the least of 32 turns decides
sooner, but leaves out what a technique itself makes slow now and then, such as waiting for data; medians are worse
than the total beside two neighbours.
"""

from math import ceil, log

TURN_SECONDS = 0.03
"""Baseline and technique change places after about so long, and after one step at least; the order of each two is
random.

A technique whose data are loaded by other processes needs longer turns: of several times as many steps as the loaders
hold ready (`num_workers` x `prefetch_factor`), or it gets for nothing what they load while the baseline has its turn.
"""

TURNS_PER_WINDOW = 48
"""Turns of each side that together are one window of a pair: 1.4 s when nothing disturbs. See above."""

DECIDABLE_SPREADS = 1.25
"""A difference is decided within 40 pairs, in 95 of 100 duels, when the standard deviation of the pairs' log ratios is
no more than this times the difference's logarithm."""


def turns_needed(spread: float, effect: float = 0.05, turns: int = TURNS_PER_WINDOW) -> int:
    """Turns of each side that a window needs here.

    A spread that is mostly that of separate turns shrinks with the square root of their number. Never fewer than
    `TURNS_PER_WINDOW`: a quiet A/A duel does not tell of the bursts to come.

    Args:
        spread: that of an A/A duel, `Noise.spread`.
        effect: the difference that is to be decided within 40 pairs, as a part of 1.
        turns: of each side in the windows of that duel.

    Raises:
        ValueError: for a negative spread, an effect that is not positive, or no turns.
    """
    if spread < 0 or effect <= 0 or turns < 1:
        raise ValueError("needs a spread of at least 0, a positive effect and at least one turn")
    return max(TURNS_PER_WINDOW, ceil(turns * (spread / (DECIDABLE_SPREADS * log(1 + effect))) ** 2))
