"""Colors of charts and pages, light and dark."""

LIGHT = {
    "ground": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1b1f27",
    "quiet": "#5b6472",
    "rule": "#dfe3e9",
    "soft": "#eef1f5",
    "faint": "#b4bac4",
    "accent": "#2458c6",
    "good": "#1a7f4b",
    "bad": "#b42318",
    "warn": "#8a5a00",
    "live": "#1667b7",
    "good-soft": "#e2f4ea",
    "bad-soft": "#fde8e6",
    "warn-soft": "#fdf1d8",
    "live-soft": "#e2effb",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#cc79a7",
    "c4": "#e69f00",
    "c5": "#56b4e9",
    "c6": "#7a5195",
}
"""By the name of the page's CSS variable. The series `c0` to `c5` are those of Okabe and Ito (2008), made to be told
apart by those who see no red and green as well."""
DARK = {
    "ground": "#12151a",
    "card": "#1a1e25",
    "ink": "#e6e9ee",
    "quiet": "#98a2b1",
    "rule": "#2e3541",
    "soft": "#232932",
    "faint": "#5a6472",
    "accent": "#85adff",
    "good": "#63d297",
    "bad": "#ff8d80",
    "warn": "#f0bd57",
    "live": "#7cbcff",
    "good-soft": "#17341f",
    "bad-soft": "#43211e",
    "warn-soft": "#3b2e12",
    "live-soft": "#17304a",
    "c0": "#4ba3e3",
    "c1": "#ff8a4c",
    "c2": "#35c79b",
    "c3": "#e6a3c8",
    "c4": "#f2bb4a",
    "c5": "#8fd0f5",
    "c6": "#b48bd0",
}
INK, QUIET, RULE, FAINT = (LIGHT[name] for name in ("ink", "quiet", "rule", "faint"))
SERIES = tuple(LIGHT[f"c{number}"] for number in range(7))
"""Colors of the lines of a chart, in their order."""
FRONT, BEST = SERIES[0], SERIES[1]
