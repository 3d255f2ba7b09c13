"""Digests of the user code, so that a study is not resumed when it has changed.

Modules are known by their files, and the Python objects that stand in a config in place of an import path by what they
are made of, where a script or a notebook defines them. Comments, blank lines and places do not count. Not seen are
modules that nothing imports before a technique of the user's own is measured, but that technique's own module, and
code in other languages.
"""

import ast
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.bench.own_objects import MAIN, parts_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import is_path, objects_in, spec_of
from paceline.config.own_files import imported_files, is_own
from paceline.config.own_techniques import own_techniques


def own_digests(config: ExperimentConfig) -> dict[str, str]:
    """By name: the user's modules that are imported in this process, those that the techniques of `tuneup.techniques`
    take in their place, and the parts of Python objects in the config that are of no such module, such as `model:
    Net`."""
    found = {**_files_of_techniques(config), **imported_files()}
    files = {name: file for name, file in found.items() if name not in MAIN and file}
    digests = dict(_of_files(files))
    for section, target in objects_in(config.model_dump()).items():
        for part, text in parts_of(target, files).items():
            digests[f"{section}: {part}"] = _digest(text)
    return digests


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_files(files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, file in files.items():
        if isinstance(file, str) and file.endswith(".py") and is_own(file):
            with suppress(OSError):
                status = os.stat(file)
                yield name, _of_file(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)  # each job of a study asks again: parsing a project of 500 modules takes seconds
def _of_file(file: str, modified_ns: int, num_bytes: int) -> str:
    return _digest(_meaning(Path(file).read_bytes()))


def _files_of_techniques(config: ExperimentConfig) -> dict[str, Any]:
    """Return the files of modules that may not be imported before a technique is measured."""
    sections = (section for _, changed in own_techniques(config) for section in changed.model_dump().values())
    paths = [section.get("path") for section in sections if isinstance(section, dict)]
    files = {}
    for name in {str(path).partition(":")[0] for path in paths if is_path(path)}:
        with suppress(ImportError, KeyError, ValueError):
            spec = spec_of(name)
            files[name] = spec.origin if spec else None
    return files


def _meaning(source: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return repr(source)
