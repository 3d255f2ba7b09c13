"""The folder of a run, a sweep or a tune-up that was removed while it was in progress."""

from pathlib import Path

from paceline.errors import EnvironmentFault

CODE = "run-folder-removed"


def folder_removed(word: str, folder: Path, kept: str = "", checkpoint: str = "") -> EnvironmentFault:
    """Return the error of a command whose folder was removed.

    Args:
        word: what a user calls it: run, sweep or tune-up.
        kept: what there still is, as a sentence without its end.
        checkpoint: the place of a state that was saved since.
    """
    rest = f". {kept}" if kept else ""
    message = f"the folder of the {word} was removed while it was in progress: {folder}{rest}"
    return EnvironmentFault(message, CODE, folder=str(folder), checkpoint=checkpoint)


def run_removed(folder: Path, checkpoint: str, is_stored: bool) -> EnvironmentFault:
    """Return the error of `train`, with what is left of the run.

    Args:
        is_stored: the folder was the working copy of a run in an object store.
    """
    if is_stored:
        return folder_removed("run", folder, "The same command resumes it from its store", checkpoint)
    kept = f"Its record is in {folder / 'tracking'} again. The same command starts a new run"
    if checkpoint:
        kept += f"; with --init-from {checkpoint} it starts from the last weights"
    return folder_removed("run", folder, kept, checkpoint)
