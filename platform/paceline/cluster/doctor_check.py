"""One line of `paceline doctor`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DoctorCheck:
    """One thing that was looked at."""

    name: str
    """What was looked at, such as `torch`."""
    ok: bool | None
    """True: fine. False: a run would fail. None: worth knowing, but no obstacle."""
    detail: str
    """What was found."""
    hint: str = ""
    """What to do about it; empty when nothing needs to be done."""
    node: str = ""
    """The node of a cluster that it is about; empty: this machine, or the cluster as a whole."""
    values: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by name with its unit."""
