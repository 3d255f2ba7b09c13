"""A script with a model in it, and the digests of its parts."""

from typing import Any
from unittest.mock import patch

from paceline.bench.own_digests import own_digests
from support.toys import toy_config

SCRIPT = """
import functools
import math
from argparse import Namespace

import torch

WIDTH = 8
NAMES = {"kind": "relu", "act": torch.nn.ReLU, "sizes": [1, 2]}
OPTIONS = Namespace(bias=True)
UNUSED = 1
scale = 1  # which is the name of an attribute, too
CALLS = 0

def activation(x, kind=torch.float32):
    global CALLS
    CALLS += 1
    return x.scale if x in {"relu", "gelu", "tanh"} else math.pi

def doubled(function):
    @functools.wraps(function)
    def wrapper(*args):
        return 2 * function(*args)
    return wrapper

@doubled
def offset():
    return 0.5

TABLE = {"offset": offset}
KINDS = {offset, activation, "plain", 3, math.sin}

def unused():
    return 1

class Base:
    depth = 2
    def forward(self, x):
        return [activation(each) for each in x]

class Net(Base):
    def __init__(self, width=4, act=torch.nn.ReLU):
        self.width = width * WIDTH
    @property
    def size(self):
        return self.width * 2
    @size.setter
    def size(self, value):
        self.width = value / 2
    @functools.cached_property
    def area(self):
        return self.width**2
    @staticmethod
    def kind():
        return NAMES["kind"], OPTIONS.bias, TABLE["offset"], KINDS
    @classmethod
    def small(cls):
        return cls(1)

def made(scale):
    def build(extra=1):
        def inner():
            return Net(scale * extra)
        return inner()
    return build

build = made(3)
"""


def build_of(source: str) -> Any:
    """Run a script and return its `build`."""
    space: dict[str, Any] = {"__name__": "script"}
    exec(compile(source, "script.py", "exec"), space)
    return space["build"]


def digests_of(build: Any) -> dict[str, str]:
    """Return the digests of a callable that stands in a config in place of a model."""
    config = toy_config().with_overrides({"model": {"path": build}})
    with patch("paceline.bench.own_digests._of_files", lambda files: iter(())):  # of modules, which take longer
        digests = own_digests(config)
    return {name: digest for name, digest in digests.items() if name.startswith("model: ")}
