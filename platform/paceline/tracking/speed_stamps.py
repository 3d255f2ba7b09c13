"""Comparability of the speeds of two runs, from their speed stamps.

A stamp is the tag `metrics.SPEED_STAMP`, as a mapping. A value that its machine did not report is None.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.tracking import metrics

OTHER_LOAD = 0.1
"""Share of the cores that other programs may use."""
CLOCKS = 0.05
"""By how much clocks may differ, of the higher one."""
MEASURED_STEPS = 10
"""Over fewer optimizer steps than this, a speed says little."""

_SAME = {
    "device": "they ran on different devices: {} and {}",
    "nodes": "they ran on a different number of machines: {} and {}",
    "workers": "they had a different number of workers: {} and {}",
    "gpus": "they had a different number of GPUs: {} and {}",
    "threads_per_worker": "torch had a different number of threads a worker: {} and {}",
    "usable_cores": "their processes could use a different number of cores: {} and {}",
    "cpu": "their processors differ: {} and {}",
    "torch": "they ran with different versions of torch: {} and {}",
    "cuda": "they ran with different versions of CUDA: {} and {}",
    "cudnn": "they ran with different versions of cuDNN: {} and {}",
}
_CLOCKS = {
    "cpu_mhz_max": "the highest clocks of their processors",
    "cpu_mhz": "the clocks of their processors",
    "gpu_mhz_max": "the highest clocks of their GPUs",
    "gpu_mhz": "the clocks of their GPUs",
}
_NAMES = ("the first run", "the second run")


@dataclass(frozen=True)
class Difference:
    """A reason why the speeds of two runs cannot be compared."""

    code: str
    """Stable identifier of the kind: `different`, `clock`, `few-steps`, `warm-up`, `load`, `no-load` or `no-stamp`."""
    key: str
    """Key of the stamp; empty where the whole stamp is missing."""
    text: str
    run: int | None = None
    """Index of the run that it is about, 0 or 1; None for both."""

    def __str__(self) -> str:
        return self.text

    def of_runs(self, first: str, second: str) -> str:
        """Return it with the names of the runs, of a reason that lies in one run with the name of that run alone."""
        if self.run is None:
            return f"{first} and {second}: {self.text}"
        return self.text.replace(_NAMES[self.run], (first, second)[self.run])


def read_stamp(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the stamp from a run's tags; empty if it is missing or damaged."""
    try:
        stamp = json.loads(tags[metrics.SPEED_STAMP])
    except (KeyError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return why the speeds of two runs cannot be compared; empty when they can.

    Args:
        first: a run's stamp, see `read_stamp`; empty when it has none.
        second: the other run's.
    """
    stamps = enumerate((first, second))
    missing = [Difference("no-stamp", "", f"{_NAMES[run]} has no stamp", run) for run, stamp in stamps if not stamp]
    if missing:
        return missing
    return [*_unlike(first, second), *_clocks(first, second), *_measured(first, 0), *_measured(second, 1)]


def _unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for key, text in _SAME.items():
        mine, theirs = first.get(key), second.get(key)
        if mine != theirs:
            yield Difference("different", key, text.format(_value_text(mine), _value_text(theirs)))


def _value_text(value: Any) -> str:
    return "not known" if value is None else str(value)


def _clocks(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    # on GPUs, the processors' clocks come and go with what little they have to do
    on_gpu = first.get("device_type") != "cpu"
    for key, what in _CLOCKS.items():
        mine, theirs = first.get(key), second.get(key)
        if mine is None or theirs is None or (on_gpu and key == "cpu_mhz"):
            continue
        if abs(mine - theirs) > CLOCKS * max(mine, theirs):
            text = f"{what} differ by more than {CLOCKS:.0%}: {mine:,.0f} and {theirs:,.0f} MHz"
            yield Difference("clock", key, text)


def _measured(stamp: Mapping[str, Any], which: int) -> Iterator[Difference]:
    name = _NAMES[which]
    steps = stamp.get("measured_steps") or 0
    if steps < MEASURED_STEPS:
        text = f"the speed of {name} was measured over {steps} steps, fewer than {MEASURED_STEPS}"
        yield Difference("few-steps", "measured_steps", text, which)
    if steps and not stamp.get("warm_up_steps"):
        text = f"the speed of {name} includes its warm-up: it has a single point"
        yield Difference("warm-up", "warm_up_steps", text, which)
    loads = {"start": stamp.get("other_load_start"), "end": stamp.get("other_load_end")}
    known = {when: load for when, load in loads.items() if load is not None}
    if not known:
        text = f"how busy other programs kept the machine of {name} is not known: it was over too soon"
        yield Difference("no-load", "other_load", text, which)
    for when, load in known.items():
        if load > OTHER_LOAD:
            text = f"other programs used {load:.0%} of the cores at the {when} of {name}"
            yield Difference("load", f"other_load_{when}", text, which)
