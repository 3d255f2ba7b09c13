"""Who may read and write what a run leaves behind."""

import stat
from pathlib import Path


def modes_in(folder: Path) -> dict[str, set[int]]:
    """The modes of a folder and all that is in it, those of its folders apart from those of its files. What Ray and
    Tune write is left out, but not the folder that it is in."""
    places = [folder, *folder.rglob("*")]
    ours = [place for place in places if "ray" not in place.relative_to(folder).parts[:-1]]
    assert len(ours) > 5, ours
    return {
        "folders": {stat.S_IMODE(place.stat().st_mode) for place in ours if place.is_dir()},
        "files": {stat.S_IMODE(place.stat().st_mode) for place in ours if not place.is_dir()},
    }


PRIVATE = {"folders": {0o700}, "files": {0o600}}
SHARED = {"folders": {0o2770}, "files": {0o660}}
