"""Numbers with their units, addresses of the web, and characters that no file may hold."""

import math

import pytest

from paceline.reports.text import GAP, axis_scale, displayable, is_web, metric_text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("peak_memory_bytes", 3 * 2**29, f"1.5{GAP}GiB"),
        ("peak_memory_bytes", 0, f"0{GAP}B"),
        ("rank_seconds/max", 0.25, f"250{GAP}ms"),
        ("rank_seconds/max", 0.0, f"0{GAP}s"),
        ("cost/core_seconds", 80.0, "1 min 20 s"),
        ("cost/core_seconds", 7500.0, "2 h 5 min"),
        ("data_wait_fraction", 0.125, f"12.5{GAP}%"),
        ("samples_per_second", 12_345.6, "12,346"),
        ("val/loss", math.nan, "nan"),
        ("system/network_receive_megabytes", 0.001056, f"1.06{GAP}kB"),
        ("system/network_receive_megabytes", 0.0, f"0{GAP}B"),
        ("system/disk_available_megabytes", 72642.2, f"72.6{GAP}GB"),
    ],
)
def test_values_of_metrics_have_the_unit_of_their_name(key: str, value: float, text: str) -> None:
    assert metric_text(value, key) == text


@pytest.mark.parametrize(
    ("key", "largest", "scale"),
    [
        ("peak_memory_bytes", 3 * 2**29, (2**30, "GiB")),
        ("step_seconds", 0.02, (1e-3, "ms")),
        ("step_seconds", 0.0, (1.0, "s")),
        ("cost/core_seconds", 7500.0, (3600.0, "h")),
        ("data_wait_fraction", 0.1, (0.01, "%")),
        ("system/disk_available_megabytes", 72642.2, (1e3, "GB")),
        ("samples_per_second", 1e6, (1.0, "")),
    ],
)
def test_a_chart_has_one_unit(key: str, largest: float, scale: tuple[float, str]) -> None:
    assert axis_scale(key, largest) == scale


def test_only_addresses_of_the_web_are_links() -> None:
    assert is_web("http://host/#/x?a=1&b=2")
    for url in (
        "javascript:alert(1)",
        "",
        "file:///etc",
        "https://",
        "http:x",
        "http://[",
        "\thttp://host",
        "//host/x",
    ):
        assert not is_web(url)


def test_characters_that_no_file_may_hold_are_replaced() -> None:
    assert displayable("a\x00b\ud800c\n") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\n"
