"""Learning-rate rules that held in branches, and the batch sizes up to which they held."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from paceline.batch_scaling.critical_batch import Branch, Rule, efficiencies

STEPS_SAVED = 1.25
"""A rule works at a larger batch size if the config's own batch takes at least this many times as many steps."""
TOLERANCE = 0.1
"""Share of the best rule's efficiency by which the usual rule may fall short."""


@dataclass(frozen=True)
class LrRules:
    """The rule that held for each batch size that branches were trained with."""

    by_size: tuple[tuple[int, Rule], ...]
    """Batch sizes and their rules, the smallest size first; at least one."""

    def at(self, size: int) -> Rule:
        """Return the rule of the largest tried batch size up to this one, or of the smallest tried one."""
        return next((rule for tried, rule in reversed(self.by_size) if tried <= size), self.by_size[0][1])

    @property
    def holds_to(self) -> int:
        """The largest batch size for which the rule of the smallest held."""
        first = self.by_size[0][1]
        others = (number for number, (_, rule) in enumerate(self.by_size) if rule != first)
        return self.by_size[next(others, len(self.by_size)) - 1][0]

    @property
    def text(self) -> str:
        """`linear up to a batch of 128, sqrt at 512`: with the sizes that were tried."""
        parts: list[str] = []
        for rule, group in groupby(self.by_size, key=lambda each: each[1]):
            sizes = [size for size, _ in group]
            if not parts:
                parts.append(f"{rule} up to a batch of {sizes[-1]:,}")
            elif len(sizes) == 1:
                parts.append(f"{rule} at {sizes[0]:,}")
            else:
                parts.append(f"{rule} from {sizes[0]:,} to {sizes[-1]:,}")
        return ", ".join(parts)


def rules_that_held(branches: Sequence[Branch], usual: Rule, own_batch_size: int) -> LrRules:
    """Return the usual rule for each batch size where it was nearly the best one, else the best.

    Args:
        usual: rule that fits the optimizer.
        own_batch_size: batch size of the config as it is. Without branches, the rule holds only up to it.
    """
    found = efficiencies(branches)
    held: list[tuple[int, Rule]] = []
    for size in sorted({size for _, size in found}):
        tried = [rules for (_, other), rules in found.items() if other == size]
        if held and all(max(rules.values()) < STEPS_SAVED * own_batch_size / size for rules in tried):
            continue  # with any rule, a batch this large saves no steps
        shares = {
            rule: fmean(rules.get(rule, 0.0) / max(rules.values()) for rules in tried)
            for rule in sorted({rule for rules in tried for rule in rules})
        }
        best = max(shares, key=lambda rule: shares[rule])
        held.append((size, usual if shares.get(usual, 0.0) >= (1 - TOLERANCE) * shares[best] else best))
    return LrRules(tuple(held) or ((own_batch_size, usual),))
