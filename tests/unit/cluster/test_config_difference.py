"""Which parts of two configs are reported to differ."""

from typing import Any

import pytest

from paceline.cluster.config_difference import config_difference

STOP = {"name": "early_stopping", "patience": 3}
EMA = {"name": "ema", "decay": 0.999}
OWN = {"path": "own:Log", "args": {"every": 1}}


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ([STOP, EMA], [{**STOP, "patience": 5}, EMA], {"callbacks.early_stopping.patience": (3, 5)}),
        ([STOP, OWN], [STOP, {**OWN, "args": {"every": 2}}], {"callbacks.own:Log.args.every": (1, 2)}),
        ([STOP], [STOP, EMA], {"callbacks.ema": (None, EMA)}),
        ([STOP, EMA], [EMA], {"callbacks.early_stopping": (STOP, None)}),
        ([STOP, EMA], [EMA, STOP], {"callbacks": ([STOP, EMA], [EMA, STOP])}),
        ([EMA, EMA], [EMA], {"callbacks": ([EMA, EMA], [EMA])}),
        ([1, 2], [1, 3], {"callbacks": ([1, 2], [1, 3])}),
        (None, [EMA], {"callbacks": (None, [EMA])}),
    ],
)
def test_a_list_of_components_differs_in_its_changed_entries(
    old: Any, new: Any, difference: dict[str, tuple[Any, Any]]
) -> None:
    assert config_difference({"callbacks": old}, {"callbacks": new}) == difference
