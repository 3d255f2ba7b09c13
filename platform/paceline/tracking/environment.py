"""Packages installed where a run was launched, found without importing them. Light to import."""

import json
import platform
import re
from typing import TYPE_CHECKING

from paceline.redaction import without_credentials

if TYPE_CHECKING:
    from importlib.metadata import Distribution

ENVIRONMENT_FILE = "environment.txt"


def environment_text() -> str:
    """`name==version` of everything installed, sorted; Python and the platform as comments. Takes some 20 ms.

    What did not come from an index has its address behind it, without credentials; of a local folder only that it is
    one.
    """
    from importlib.metadata import distributions

    lines: dict[str, str] = {}
    for found in distributions():
        name, version = _head(found)
        if name:
            lines.setdefault(re.sub(r"[-_.]+", "-", name).lower(), f"{name}=={version}{_origin(found)}")
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    head = ["# installed where the run was launched", f"# {implementation}", f"# {platform.platform()}"]
    return "\n".join([*head, *(lines[name] for name in sorted(lines))]) + "\n"


def package_version(package: str) -> str | None:
    """Version of an installed package, found without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _head(found: "Distribution") -> tuple[str, str]:
    """Name and version. A whole parser for these two lines would take ten times as long."""
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    head = text.partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version): *(.*?) *$", head, re.MULTILINE))
    return fields.get("Name", ""), fields.get("Version", "unknown")


def _origin(found: "Distribution") -> str:
    """Return the origin of a package as a comment; empty for one from an index."""
    try:
        told = json.loads(found.read_text("direct_url.json") or "{}")
        url, versioned = str(told.get("url", "")), told.get("vcs_info") or {}
        if url.startswith("file:"):
            return "  # editable" if (told.get("dir_info") or {}).get("editable") else "  # from a local file or folder"
        if not url:
            return ""
        scheme, commit = versioned.get("vcs", ""), versioned.get("commit_id", "")
        return f"  # {scheme + '+' if scheme else ''}{without_credentials(url)}{'@' + commit if commit else ''}"
    except (ValueError, AttributeError):
        return ""
