"""Why each technique is in the recommended config, or is not, in a sentence."""

from textwrap import shorten

from paceline.tuneups.outcome import ArmResult, Beside, Findings
from paceline.tuneups.texts import (
    UNDECIDED,
    UNMEASURED,
    UNSHOWN,
    arm_cells,
    memory_text,
    overrides_text,
    quality_text,
    speed_text,
)

FIX = "fix-"
"""What the names of techniques begin with that do not tell what they set."""
FAILED = "it cannot be run"
"""What the reason of a technique begins with that was tried, and failed."""
REASON_WIDTH = 200
"""Characters of a reason in a table."""


def explanation(arm: ArmResult, findings: Findings) -> str:
    """The result of a technique: why it is recommended, or why it is not, and what was told while it was built."""
    sets = [f"it sets {overrides_text(arm.overrides)}"] if arm.name.startswith(FIX) else []
    return "; ".join([_came_of(arm, findings), *sets, *arm.warnings])


def _came_of(arm: ArmResult, findings: Findings) -> str:
    if arm.verdict == "not applicable":
        # an exception may say a lot; `findings.json` has all of it
        reason = shorten(arm.reason, REASON_WIDTH, placeholder=" ...")
        return reason if reason.startswith(FAILED) else f"not tried: {reason}"
    if arm.is_recommended:
        return _recommended(arm, findings)
    if arm.quality.verdict == "worse":
        return f"it makes the model worse: {quality_text(arm.quality)}"
    met = _met(arm, findings)
    if arm.verdict == "harm":
        saves = arm.memory_ratio is not None and arm.memory_ratio < 0.95
        return f"slower, at {memory_text(arm)} the memory" if saves else f"slower{_and_beside(met)}"
    if arm.verdict == "none":
        return f"{UNDECIDED if arm.is_open else 'no difference that counts'}{_and_beside(met)}"
    return _gains_alone(arm, findings, met)


def shown_arms(findings: Findings) -> list[ArmResult]:
    """The techniques in the order to read them: what is recommended, what was tried, by speed, and the rest."""
    return sorted(findings.arms, key=lambda arm: (not arm.is_recommended, arm.speedup is None, -(arm.speedup or 0.0)))


def rows_of(findings: Findings) -> list[tuple[str, ...]]:
    """A row for each technique, under `texts.HEADING`."""
    return [(*arm_cells(arm), explanation(arm, findings)) for arm in shown_arms(findings)]


def unhelpful(findings: Findings) -> list[tuple[str, list[str]]]:
    """The techniques that were tried and are not recommended, by the result."""
    left = [arm for arm in findings.arms if not arm.is_recommended]
    worse = [arm.name for arm in left if arm.quality.verdict == "worse"]
    rest = [arm for arm in left if arm.name not in worse]
    groups = {
        "no difference": [arm.name for arm in rest if arm.verdict == "none" and not arm.is_open],
        UNDECIDED: [arm.name for arm in rest if arm.is_open],
        "slower": [arm.name for arm in rest if arm.verdict == "harm"],
        "a worse model": worse,
        UNMEASURED: [arm.name for arm in rest if arm.gains_unmeasured],
        "faster alone, but left out": [arm.name for arm in rest if arm.verdict == "gain" and not arm.gains_unmeasured],
    }
    return [(what, names) for what, names in groups.items() if names]


def beside_text(beside: Beside) -> str:
    """Such as `1.33 x (1.30-1.34) beside cache-memory + batch-x8`."""
    where = f"beside {' + '.join(beside.others)}" if beside.others else ""
    if beside.question == "instead":
        where = f"in place of the other of its kind {where}".rstrip()
    if beside.speedup is None:
        return f"not tried {where}: {beside.reason}"
    return f"{speed_text(beside.speedup, beside.speedup_interval)} {where}"


def _recommended(arm: ArmResult, findings: Findings) -> str:
    met = [each for each in findings.beside if each.name == arm.name and each.verdict == "gain"]
    if not met:
        return "recommended"
    alone = "" if arm.verdict == "gain" else "alone it shows little, but "
    return f"recommended: {alone}{beside_text(met[-1])}"


def _gains_alone(arm: ArmResult, findings: Findings, met: Beside | None) -> str:
    if arm.quality.difference is not None and not arm.quality.is_fine:
        return f"{UNSHOWN}: {quality_text(arm.quality)}"
    return f"{UNMEASURED if arm.gains_unmeasured else 'faster alone'}{_but(arm, findings, met)}"


def _but(arm: ArmResult, findings: Findings, met: Beside | None) -> str:
    """What stands against a gain among the others."""
    if met is not None and met.question == "needed" and met.verdict != "gain":
        return f", but not needed any more: {beside_text(met)}"
    rival = next((each for each in findings.arms if each.is_recommended and each.family == arm.family), None)
    if rival is not None and arm.family:
        return f", but {rival.name} sets the same and is recommended"
    if met is not None:
        return f"; {beside_text(met)}"
    return "" if arm.gains_unmeasured else ", but it does not go with what is recommended"


def _met(arm: ArmResult, findings: Findings) -> Beside | None:
    """The last time that it was tried beside others."""
    return next((each for each in reversed(findings.beside) if each.name == arm.name), None)


def _and_beside(met: Beside | None) -> str:
    return f"; {beside_text(met)}" if met is not None and met.speedup is not None else ""
