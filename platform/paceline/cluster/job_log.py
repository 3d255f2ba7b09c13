"""Follows a job: shows its driver's log as it grows, over connections that may break, until the job has ended."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.cluster.job_client import is_unknown
from paceline.errors import EnvironmentFault
from paceline.redaction import redact

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails
    from ray.job_submission import JobSubmissionClient

ASK_SECONDS = 10.0
"""Seconds between two requests for the job's state while its log is followed: a dead tunnel looks like a silent log."""
LAST_LINES_SECONDS = 10.0
"""Seconds that the end of the log may take to arrive once the job has ended."""
PAUSES_SECONDS = (0.5, 1.0, 2.0, 5.0)
"""Seconds before each new attempt to connect; the last value repeats."""
STEADY_SECONDS = 60.0
"""Seconds after which a connection counts as steady, so that its loss is reported again."""
PATIENCE_SECONDS = 1800.0
"""Seconds without contact after which the cluster is given up."""


class ConnectionLost(EnvironmentFault):
    """The cluster has been away for too long; the job may continue."""


class LogFollower:
    """Shows each line of a job's log once: the server begins at the first line each time that the log is requested."""

    def __init__(
        self,
        client: "JobSubmissionClient",
        job_id: str,
        write: Callable[[str], Any],
        tell: Callable[[str], Any],
        hides_result: bool = False,
    ) -> None:
        """
        Args:
            write: takes whole lines of the log, without secrets.
            tell: takes messages about the connection.
            hides_result: do not write the line of `result`, which the caller shows.
        """
        self.client, self.job_id = client, job_id
        self._write, self._tell = write, tell
        self._hides_result = hides_result
        self._held = ""  # the line of the result, which is an ordinary one when another result comes
        self._seen = 0  # characters of the log
        self._open = ""  # a line whose end is not there yet
        self._reached = time.monotonic()
        self.result: dict[str, Any] | None = None
        """The last line that is a result as `--json` prints it."""

    def follow(self) -> "JobDetails":
        """Show the log until the job has ended; return the details of the job.

        Raises:
            EnvironmentFault: the cluster knows no such job, or has been away for too long.
            KeyboardInterrupt: Ctrl-C; the job continues.
        """
        return asyncio.run(self._follow())

    async def _follow(self) -> "JobDetails":
        tries, lost_errors = 0, _lost_errors()
        while True:
            seen, began = self._seen, time.monotonic()
            try:
                ended = await self._until_broken()
                reason = "the log broke off"
            except lost_errors as error:
                _raise_if_final(error, self.job_id)
                ended, reason = None, _short(error)
            if ended is not None:
                self._flush()
                return ended
            if tries == 0 or self._seen > seen or time.monotonic() - began > STEADY_SECONDS:
                self._tell(f"the connection to the job is lost ({reason}): trying again")
                tries = 0
            if time.monotonic() - self._reached > PATIENCE_SECONDS:
                message = f"the cluster cannot be reached any more ({reason}); the job may continue there"
                raise ConnectionLost(message, "connection-lost", job_id=self.job_id)
            await asyncio.sleep(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS) - 1)])
            tries += 1

    async def _until_broken(self) -> "JobDetails | None":
        """Show the log over one connection; return the details of the job if it has ended, else None."""
        await self._details()  # a job that is not there has no log to wait for
        showing = asyncio.create_task(self._show())
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait([showing, asking], return_when=asyncio.FIRST_COMPLETED)
            if not showing.done() and not asking.exception():
                await asyncio.wait([showing], timeout=LAST_LINES_SECONDS)
        finally:
            await _end(showing, asking)
        for task in (showing, asking):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        details = await self._details()
        if showing.cancelled():  # the job has ended, but its log has not
            self._catch_up(await asyncio.to_thread(self.client.get_job_logs, self.job_id), 0)
        return details if details.status.is_terminal() else None

    async def _details(self) -> "JobDetails":
        details = await asyncio.to_thread(self.client.get_job_info, self.job_id)
        self._reached = time.monotonic()
        return details

    async def _show(self) -> None:
        shown = 0
        async for text in self.client.tail_job_logs(self.job_id):
            self._catch_up(text, shown)
            shown += len(text)

    def _catch_up(self, text: str, start: int) -> None:
        """Take a part of the log that begins at the character `start`, without what was taken before."""
        fresh = text[max(0, self._seen - start) :]
        self._seen = max(self._seen, start + len(text))
        *lines, self._open = (self._open + fresh).split("\n")
        for line in lines:
            self._show_line(line)

    async def _ask(self) -> None:
        """Poll the job until it has ended; raise the error of a request that fails."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if (await self._details()).status.is_terminal():
                return

    def _flush(self) -> None:
        if self._open:
            self._show_line(self._open)
            self._open = ""

    def _show_line(self, line: str) -> None:
        result = _result_in(line)
        self.result = result or self.result
        if result is not None and self._hides_result:
            line, self._held = self._held, line
            if not line:
                return
        self._write(f"{redact(line)}\n")


def _lost_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a lost connection; Ray's client adds errors of its own to those of its libraries."""
    import aiohttp
    import requests

    web = (aiohttp.ClientError, requests.exceptions.RequestException)
    return (*web, TimeoutError, ConnectionResetError, RuntimeError, ValueError)


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _raise_if_final(error: Exception, job_id: str) -> None:
    """Raise an error for which another attempt is useless: the cluster does not know the job, or refuses the token."""
    from ray.exceptions import AuthenticationError

    if isinstance(error, AuthenticationError):
        raise error
    if is_unknown(error):
        message = f"the cluster knows no job {job_id}: its head may have been restarted"
        raise EnvironmentFault(message, "job-unknown", job_id=job_id) from None


def _short(error: BaseException) -> str:
    return redact(f"{type(error).__name__}: {error}".partition("\n")[0][:200])


def _result_in(line: str) -> dict[str, Any] | None:
    """Return the result that `--json` prints at a command's end, if a line holds one; else None."""
    if not (line.startswith("{") and line.rstrip().endswith("}")):
        return None
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) and "status" in found else None
    return None
