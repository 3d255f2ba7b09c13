"""An object store that is a folder, for tests without a server."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

AWAY = "curlCode: 7, Could not connect to server"
NO_FILE = "AWS Error NO_SUCH_KEY during CopyObject operation"
FORBIDDEN = "AWS Error ACCESS_DENIED during PutObject operation"


class LocalStore:
    """Stands in for pyarrow's file system of a store: a folder without files is not there, and writes are counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._files = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())
        self.written: list[str] = []
        """Places of the files that were written or copied, in order."""
        self.fault = ""
        """What each request fails with; empty: it works."""
        self.refused: Callable[[str], bool] = lambda place: False
        """Tells the files that cannot be written to."""

    def open_input_stream(self, place: str) -> Any:
        self._request()
        return self._files.open_input_stream(place)

    def open_output_stream(self, place: str) -> Any:
        self._write(place)
        return self._files.open_output_stream(place)

    def copy_file(self, source: str, target: str) -> None:
        self._write(target)
        if not (self.root / source).is_file():
            raise OSError(NO_FILE)
        self._files.copy_file(source, target)

    def get_file_info(self, selector: Any) -> Any:
        self._request()
        found = self._files.get_file_info(selector)
        if isinstance(selector, str):
            return found
        return [info for info in found if info.type == fs.FileType.File or self._holds_files(info.path)]

    def delete_file(self, place: str) -> None:
        self._request()
        self._files.delete_file(place)
        with suppress(OSError):
            os.removedirs(self.root / Path(place).parent)
        self.root.mkdir(parents=True, exist_ok=True)

    def delete_dir(self, place: str) -> None:
        self._request()
        self._files.delete_dir(place)

    def _request(self) -> None:
        if self.fault:
            raise OSError(self.fault)

    def _write(self, place: str) -> None:
        self._request()
        if self.refused(place):
            raise OSError(FORBIDDEN)
        (self.root / place).parent.mkdir(parents=True, exist_ok=True)
        self.written.append(place)

    def _holds_files(self, place: str) -> bool:
        return any(path.is_file() for path in (self.root / place).rglob("*"))
