"""The report of a run, a sweep, a tune-up or a scale study, as one HTML file."""

from pathlib import Path

from paceline.durable import write_durably
from paceline.errors import EnvironmentFault
from paceline.places import place_of
from paceline.runs.finding import FoundRun, find_run

REPORT_FILE = "report.html"


def report(run: str | Path, output: str | Path | None = None, *, storage: str | Path | None = None) -> Path:
    """Write the report of a run, a sweep, a tune-up or a scale study as one HTML file, and return its path.

    Args:
        run: see `find_run`.
        output: the file; by default `report.html` in the run's own folder.
        storage: the folder that holds the runs, or its address; by default PACELINE_STORAGE, else `runs` in the working
            folder.

    Raises:
        EnvironmentFault: there is no such run, its files are damaged, or the report cannot be written.
        ConfigError: a sweep's config is not valid any more, such as that of another version of Paceline.
    """
    return write_report(find_run(run, storage, studies=True), None if output is None else Path(output))


def write_report(found: FoundRun, output: Path | None = None) -> Path:
    """Write the report, over an older one, and return its path. The run may have ended, or still be running.

    Args:
        found: from `find_run`.
        output: the file, or a device or a pipe; by default `report.html` in the run's own folder.

    Raises:
        EnvironmentFault: the run's files are damaged, or the report cannot be written.
        ConfigError: a sweep's config is not valid any more, such as that of another version of Paceline.
    """
    place = place_of(output or found.folder / REPORT_FILE)
    if place.is_dir():
        message = f"{place} is a folder: name a file, such as {place / REPORT_FILE}"
        raise EnvironmentFault(message, "output-not-usable", path=place)
    data = report_of(found)
    try:
        _write(place, data)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"the report cannot be written to {place}: {reason}"
        raise EnvironmentFault(message, "output-not-written", path=place) from None
    return place


def _write(place: Path, data: bytes) -> None:
    """Replace a file, or the target of a link, which stays. A device or a pipe takes the report, and stays too."""
    if place.exists() and not place.is_file():
        with place.open("wb") as file:
            file.write(data)
    else:
        write_durably(place.resolve(), data)


def report_of(found: FoundRun) -> bytes:
    """Return the report as the content of a file. Raises as `write_report` does."""
    if found.kind == "sweep":
        from paceline.runs.report.sweep_report import sweep_report

        return sweep_report(found.folder, found.store).render()
    if found.kind == "tune-up":
        from paceline.tuneups.stored_findings import stored_report

        return stored_report(found.folder)
    if found.kind == "scale":
        from paceline.batch_scaling.stored_findings import stored_report as stored_scale_report

        return stored_scale_report(found.folder)
    from paceline.runs.report.run_report import run_report

    return run_report(found).render()
