"""Digests of the user code: its meaning counts, and all that it takes from its own module."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.bench.own_digests import own_digests
from support.bench.user_script import SCRIPT, build_of, digests_of
from support.toys import toy_config


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("WIDTH = 8", "WIDTH = 9", "WIDTH"),
        ('"sizes": [1, 2]', '"sizes": [1, 3]', "NAMES"),
        ("bias=True", "bias=False", "OPTIONS"),
        ("kind=torch.float32", "kind=torch.float64", "activation"),
        ("else math.pi", "else math.e", "activation"),
        ('"gelu", "tanh"', '"gelu", "silu"', "activation"),
        ("2 * function", "3 * function", "offset"),
        ("return 0.5", "return 0.7", "offset"),
        ('"plain", 3', '"plain", 4', "KINDS"),
        ("depth = 2", "depth = 3", "Base"),
        ("for each in x]", "for each in x[1:]]", "Base"),
        ("act=torch.nn.ReLU", "act=torch.nn.GELU", "Net"),
        ("self.width * 2", "self.width * 3", "Net"),
        ("value / 2", "value / 3", "Net"),
        ("self.width**2", "self.width**3", "Net"),
        ("extra=1", "extra=2", "made.<locals>.build"),
        ("scale * extra", "scale + extra", "made.<locals>.build"),
        ("made(3)", "made(4)", "made.<locals>.build"),
    ],
)
def test_a_change_of_what_a_script_computes_changes_the_digest_of_its_part(old: str, new: str, part: str) -> None:
    assert SCRIPT.count(old) == 1
    before, now = digests_of(build_of(SCRIPT)), digests_of(build_of(SCRIPT.replace(old, new)))
    assert {name for name in before | now if before.get(name) != now.get(name)} == {f"model: {part}"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH = 8", "# how wide\n\nWIDTH = 8"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("CALLS = 0", "CALLS = 7"),
        ("scale = 1", "scale = 2"),
        ("def unused():\n    return 1", "def other(): ..."),
    ],
)
def test_other_changes_of_a_script_do_not(old: str, new: str) -> None:
    assert SCRIPT.count(old) == 1
    assert digests_of(build_of(SCRIPT.replace(old, new))) == digests_of(build_of(SCRIPT))


@pytest.mark.parametrize(
    ("build", "changed"),
    [
        ("functools.partial(made(3), 2)", "functools.partial(made(3), 3)"),
        ("functools.partial(made, scale=torch.nn.ReLU)", "functools.partial(made, scale=torch.nn.GELU)"),
        ("functools.lru_cache(made(3))", "functools.lru_cache(made(4))"),
        ("Net", "Base"),
        ("Net.small", "Net.kind"),
    ],
)
def test_any_kind_of_callable_has_a_digest(build: str, changed: str) -> None:
    first, second, other = (
        digests_of(build_of(SCRIPT.replace("build = made(3)", f"build = {each}"))) for each in (build, build, changed)
    )
    assert first == second
    assert other != first
    narrower = SCRIPT.replace("build = made(3)", f"build = {build}").replace("self.width = width *", "self.width = 2 *")
    assert build == "functools.partial(made, scale=torch.nn.ReLU)" or digests_of(build_of(narrower)) != first


def test_an_object_is_known_by_its_class_and_its_settings() -> None:
    source = "class Build:\n    def __init__(self, n):\n        self.n = n\n        self.calls = []\n\n"
    source += "    def __call__(self):\n        return self.n\n\nbuild = Build(4)\n"
    first, again = build_of(source), build_of(source)
    again.calls.append(1)
    assert digests_of(again) == digests_of(first)
    assert digests_of(build_of(source.replace("Build(4)", "Build(8)"))) != digests_of(first)
    assert digests_of(build_of(source.replace("return self.n", "return -self.n"))) != digests_of(first)


def test_modules_are_known_by_their_syntax_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("imported_net", "later_net", "strange_net"):
        (tmp_path / f"{name}.py").write_text("def build(width):\n    return width\n")
    names = ("imported_net", "torch", "json", "paceline.bench.own_digests", "__main__", __name__)
    modules = {name: importlib.import_module(name) for name in names}  # of all, each digest would take seconds
    monkeypatch.setattr("paceline.config.own_files.sys", SimpleNamespace(modules=modules))
    techniques = {"later": {"model": {"path": "later_net:build", "args": {"width": 1}}}, "same": {"optimizer.lr": 0.2}}
    config = toy_config().with_overrides({"tuneup": {"techniques": techniques}})
    first = own_digests(config)
    assert {"imported_net", "later_net", __name__} <= first.keys()
    assert not {"strange_net", "torch", "json", "paceline.bench.own_digests", "__main__"} & first.keys()
    (tmp_path / "imported_net.py").write_text("# It says more.\ndef build( width ):\n\n    return (width)\n")
    (tmp_path / "later_net.py").write_text("def build(width):\n    return 2 * width\n")
    second = own_digests(config)
    assert {name for name in second if second[name] != first[name]} == {"later_net"}
    (tmp_path / "later_net.py").write_text("def build(:\n")
    (tmp_path / "imported_net.py").unlink()
    third = own_digests(config)
    assert third["later_net"] not in (first["later_net"], second["later_net"])
    assert "imported_net" not in third
