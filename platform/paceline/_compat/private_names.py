"""Look up a private name by its dotted path, and say which versions of the library have it."""

import re
from importlib import import_module, metadata
from typing import Any

from paceline.errors import EnvironmentFault


def required(path: str) -> Any:
    """Return the object at a dotted path, importing the modules on the way.

    Raises:
        EnvironmentFault: the installed version has no such name.
    """
    first, *rest = path.split(".")
    found, seen = import_module(first), first
    for name in rest:
        seen = f"{seen}.{name}"
        try:
            found = getattr(found, name) if hasattr(found, name) else import_module(seen)
        except ImportError:
            raise unsupported(path) from None
    return found


def unsupported(path: str) -> EnvironmentFault:
    """Return the error for a missing private name; it names the versions that have it."""
    library = path.partition(".")[0]
    return EnvironmentFault(
        f"{library} {_version_of(library)} has no {path}, which Paceline uses: "
        f"install {library}{_supported_versions(library)}",
        "unsupported-version",
        library=library,
        name=path,
    )


def _version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "(unknown version)"


def _supported_versions(library: str) -> str:
    """The range that Paceline's own metadata give, such as `<2.16,>=2.11`."""
    try:
        requirements = metadata.requires("paceline") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return " in a version that pyproject.toml allows"
    matches = (re.match(rf"{library}(?:\[[^]]*\])?\s*([<>=!~][^;]*)", each) for each in requirements)
    return next((match[1].strip() for match in matches if match), "")
