"""User code in the config: `path: "my_pkg.nets:build"`, or the Python object itself."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from paceline.config.base import Component, Section
from paceline.config.components import components_in
from paceline.config.hints import nearest
from paceline.config.own_files import is_own
from paceline.config.plain import check_args
from paceline.config.top_names import top_names
from paceline.errors import ConfigError, Problem, UnusableCode
from paceline.private_files import write_private

LIGHTNING_TASK = "paceline.adapters:LightningTask"
PATH_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"

WRAP_IN_FUNCTION = "wrap it in a function that returns (train, validation)"
"""Hint for a `data.path` that names a data set class."""

_NAME_OF_OBJECT = re.compile(r"[\w.]+:[\w.]*<[\w.<>]*")
"""Name of an object that cannot be imported: a lambda, a nested function or an instance."""


def path_of(target: Callable[..., Any]) -> str:
    """Return `module:qualified.name` of a Python object, as written into saved configs.

    An instance has no name: its class is written in angle brackets instead.
    """
    module = getattr(target, "__module__", None) or "__main__"
    name = getattr(target, "__qualname__", None) or f"<{type(target).__qualname__}>"
    return f"{module}:{name}"


class AbsentObject:
    """Placeholder, in the config of a reopened run, for a Python object that the run was started with."""

    def __init__(self, section: str, path: str) -> None:
        self._section, self._path = section, path
        self.__module__, _, self.__qualname__ = path.partition(":")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbsentObject) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to be used.

        Raises:
            UnusableCode: always.
        """
        hint = "Pass it again: load_model(model=...)." if self._section == "model" else "Only its program has it."
        raise UnusableCode(
            f"{self._section}.path {self._path!r} cannot be called: the run was started with a Python object, of which "
            f"only the name was kept. {hint}",
            "needs-object",
            section=self._section,
            path=self._path,
        )


def with_absent_objects(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config with an `AbsentObject` for each path of a Python object that cannot be imported."""

    def restored(section: str, value: Any) -> Any:
        if isinstance(value, list):
            return [restored(section, each) for each in value]
        path = value.get("path") if isinstance(value, Mapping) else None
        return {**value, "path": AbsentObject(section, path)} if isinstance(path, str) and _is_absent(path) else value

    return {section: restored(section, value) for section, value in tree.items()}


def _is_absent(path: str) -> bool:
    if _NAME_OF_OBJECT.fullmatch(path):
        return True
    module, _, name = path.partition(":")
    if module != "__main__" or not is_path(path):
        return False
    try:
        attrgetter(name)(sys.modules["__main__"])
    except AttributeError:
        return True
    return False


def check_path(value: Any) -> Any:
    if callable(value):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text like 'my_pkg.nets:build' (or, from Python, a callable)")
    if not re.fullmatch(PATH_PATTERN, value):
        raise ValueError(f"{value!r} is not an import path; write 'module:function', such as 'my_pkg.nets:build'")
    return value


def is_path(value: Any) -> bool:
    """Return True if a value is text of the form `module:function`."""
    return isinstance(value, str) and re.fullmatch(PATH_PATTERN, value) is not None


ImportPath = Annotated[
    Any,
    BeforeValidator(check_path),
    PlainSerializer(lambda value: path_of(value) if callable(value) else value, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": PATH_PATTERN, "examples": ["my_pkg.nets:build"]}),
]


class Called(Component):
    """A component that is made by calling code outside of Paceline with `args`."""

    args: Annotated[dict[str, Any], AfterValidator(check_args)] = Field(default_factory=dict)
    """Keyword arguments of the call."""

    @property
    def target(self) -> Any:
        """Import path of the callable, or the callable itself."""
        raise NotImplementedError

    @property
    def import_path(self) -> str:
        """Import path `module:name` of the callable, also if it is given as a Python object."""
        if isinstance(self.target, str):
            return self.target
        return path_of(self.target if callable(self.target) else type(self.target))

    def chosen(self, section: str) -> str:
        """Return the key and the value that choose the component, such as `model.path 'own:net'`."""
        selector = "path" if "path" in type(self).model_fields else "name"
        return f"{section}.{selector} {self.describe()!r}"

    def load(self) -> Callable[..., Any]:
        """Import the module and return the callable.

        Raises:
            ConfigError: the module does not import, or has no callable of that name.
        """
        if callable(self.target):
            return self.target  # type: ignore[no-any-return]
        module, _, name = str(self.target).partition(":")
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:
            raise ConfigError(
                [Problem("import", f"importing {module!r} failed: {type(error).__name__}: {error}", "path")]
            ) from error
        for part in name.split("."):
            if not hasattr(found, part):
                raise ConfigError([Problem("import", f"module {module!r} has no {name!r}", "path")])
            found = getattr(found, part)
        if not callable(found):
            raise ConfigError([Problem("import", f"{self.target!r} is not callable", "path")])
        return found  # type: ignore[no-any-return]

    def call(self, *given: Any, **extra: Any) -> Any:
        """Call the user code with `args` and the arguments that Paceline adds."""
        return self.load()(*given, **{**self.args, **extra})


class Imported(Called):
    """A custom component: a callable given by its import path, and the arguments of the call."""

    path: ImportPath
    """`module:function` of user code. The folder of the config file and the working folder are importable, after
    installed packages."""

    @property
    def target(self) -> Any:
        """Import path of the callable, or the callable itself."""
        return self.path


class Registered(Called):
    """A component that an installed package offers by an entry point. `registry` creates it and sets the fields."""

    entry_point: ClassVar[str] = ""
    """Import path of the callable."""
    package: ClassVar[str] = ""
    """Name of the installed package."""

    @property
    def target(self) -> Any:
        """Import path of the callable."""
        return self.entry_point


def called_components(config: Section) -> Iterator[tuple[str, Called]]:
    """Yield the dotted key and the component of each part of an experiment that calls code outside of Paceline."""
    for key, component in components_in(dict(config)):
        if isinstance(component, Called) and not component.import_path.startswith("paceline."):
            yield key, component


def missing_module(path: str) -> Problem | None:
    """Return the problem of an import path whose module or name does not exist, found without running its code.

    None if both exist, or if that cannot be determined.
    """
    if not is_path(path):
        return None
    module, _, name = path.partition(":")
    if module in sys.modules:
        return _missing_in_loaded(module, name)
    try:
        spec = spec_of(module)
    except (ImportError, KeyError, ValueError):
        # A nested namespace package, or a custom finder: only importing the module can show whether it exists.
        return None
    if spec:
        return _missing_in_file(spec, module, name)
    near = _near_module(module)
    hint = f"did you mean {near}:{name}?" if near else f"looked in {', '.join(_own_folders()[:3])}"
    return Problem("import", f"no module named {module!r}", "path", hint=hint)


def _own_folders() -> list[str]:
    return list(dict.fromkeys([*(each for each in _added if each in sys.path), *user_folders()]))


def _near_module(module: str, cutoff: float = 0.6) -> str | None:
    """Return the user's module whose name is most similar; `nets` for `nets.py`, too."""
    own = sorted({file.stem for folder in _own_folders() for file in Path(folder).glob("*.py")} - {module})
    stem = module.removesuffix(".py")
    return stem if stem in own else nearest(stem, own, cutoff)


def spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module like `importlib.util.find_spec`, but without importing its parent packages."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    for depth, _ in enumerate(inner, start=2):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join(module.split(".")[:depth]), list(spec.submodule_search_locations))
    return spec


def _missing_in_loaded(module: str, name: str) -> Problem | None:
    """Return the problem of a name that an imported module does not have.

    None if the module is still being imported, or creates names dynamically: it may have the name later.
    """
    loaded, first = sys.modules[module], name.partition(".")[0]
    spec = getattr(loaded, "__spec__", None)
    known = set(getattr(loaded, "__dict__", ["__getattr__"]))
    if module == "paceline":  # which lists what it imports late
        known = {*known, *dir(loaded)} - {"__getattr__"}
    if first in known or "__getattr__" in known or spec is None or getattr(spec, "_initializing", False):
        return None
    if type(loaded) is not ModuleType or _is_submodule(spec, module, first):
        return None
    return _no_such_name(module, name, known, spec)


def _missing_in_file(spec: ModuleSpec, module: str, name: str) -> Problem | None:
    """Return the problem of a name that the file of a module does not have, or of a file that is not valid Python."""
    first = name.partition(".")[0]
    if not spec.origin or not spec.origin.endswith(".py") or _is_submodule(spec, module, first):
        return None
    try:
        names = top_names(Path(spec.origin))
    except SyntaxError as error:
        return Problem("import", f"importing {module!r} failed: {type(error).__name__}: {error}", "path")
    if names is None or first in names or first.startswith("__"):
        return None
    return _no_such_name(module, name, names, spec)


def _is_submodule(spec: ModuleSpec, module: str, name: str) -> bool:
    locations = spec.submodule_search_locations
    return locations is not None and PathFinder.find_spec(f"{module}.{name}", list(locations)) is not None


def _no_such_name(module: str, name: str, names: set[str], spec: ModuleSpec) -> Problem:
    first, dot, inner = name.partition(".")
    near = nearest(first, sorted(each for each in names if not each.startswith("_")))
    hint = f"did you mean {near}{dot}{inner}?" if near else ""
    if hidden := _hidden_file(module, spec):
        hint = f"it is not {hidden}: rename your file, since libraries come first"
        return Problem("import", f"module {module!r} ({spec.origin}) has no {name!r}", "path", hint=hint)
    if spec.origin and not is_own(spec.origin) and (mine := _near_module(module, 0.8)) and _may_have(mine, first):
        return Problem("import", f"{spec.origin} has no {name!r}", "path", hint=f"did you mean {mine}:{name}?")
    if name == "LightningTask" and module.startswith("paceline"):
        hint = f"write {LIGHTNING_TASK}"
    return Problem("import", f"module {module!r} has no {name!r}", "path", hint=hint)


def _hidden_file(module: str, spec: ModuleSpec) -> Path | None:
    """Return the user's file of a module's name, if another module of that name was found before it."""
    files = [Path(folder, *module.split(".")).with_suffix(".py") for folder in _own_folders()]
    own = next((file for file in files if file.is_file()), None)
    return None if own is None or Path(spec.origin or own).resolve() == own.resolve() else own


def _may_have(module: str, name: str) -> bool:
    file = next(Path(folder) / f"{module}.py" for folder in _own_folders() if (Path(folder) / f"{module}.py").exists())
    with suppress(SyntaxError, OSError):
        names = top_names(file)
        return names is None or name in names
    return False


_added: list[str] = []
"""Folders that `make_importable` has added to the import path, in their order there."""


def make_importable(folders: Sequence[Path]) -> None:
    """Append folders to the import path, once each, in the given order.

    They come after the standard library and the installed packages, so that a `numpy.py` beside a config is not
    imported in place of the library, and before the folders of earlier calls. A folder that is in the import path for
    another reason (PYTHONPATH, the folder of a script) keeps its position.
    """
    before = [entry for entry in _added if entry in sys.path]
    others = [entry for entry in sys.path if entry not in before]
    given = [folder for folder in dict.fromkeys(str(each.resolve()) for each in folders) if folder not in others]
    _added[:] = [*given, *(entry for entry in before if entry not in given)]
    sys.path[:] = [*others, *_added]


def has_import_paths(tree: Any) -> bool:
    """Return True if any `path` in a config tree is an import path, nested lists and axes of a sweep included."""
    if isinstance(tree, Mapping):
        return any(
            has_import_paths(value) or (str(key).split(".")[-1] == "path" and _holds_path(value))
            for key, value in tree.items()
        )
    return isinstance(tree, list | tuple) and any(has_import_paths(each) for each in tree)


def _holds_path(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_path(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_path(each) for each in value)
    return is_path(value)


CODE_FILE = "code.json"
"""File in a run's folder with the folders of the user code."""


def remember_folders(folder: Path) -> None:
    """Save the folders of the user code in the folder of a run or a sweep.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_private(folder / CODE_FILE, json.dumps({"import_folders": user_folders()}, indent=1).encode())


def remembered_folders(folder: Path) -> list[Path]:
    """Return the folders from which a config in a run's folder imports user code; empty for other folders."""
    try:
        found = json.loads((folder / CODE_FILE).read_bytes())["import_folders"]
        return [Path(each) for each in found if Path(each).is_dir()]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def objects_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Python objects that a dumped config holds in place of import paths, by dotted key of the component."""
    found = ((key, part.get("path")) for key, part in components_in(config) if isinstance(part, Mapping))
    return {key: path for key, path in found if path is not None and not isinstance(path, str)}


def user_folders() -> tuple[str, ...]:
    """Return the importable folders with user code: all except those of Python and of installed packages."""
    installed = tuple(str(Path(prefix).resolve()) for prefix in {sys.prefix, sys.base_prefix})
    folders = dict.fromkeys(_absolute(entry) for entry in sys.path)
    return tuple(folder for folder in folders if not folder.startswith(installed) and Path(folder).is_dir())


def _absolute(entry: str) -> str:
    """Return the folder of an entry of the import path; an empty entry (interactive Python) is the working folder."""
    try:
        return str(Path(entry).resolve())
    except OSError:  # the working folder was removed
        return entry
