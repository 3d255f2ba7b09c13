"""`submit`: a config becomes a job on a cluster, whose log is followed to its end.

plan, all checks here  ->  reach the dashboard  ->  no job of this name continues, and the cluster is large enough
->  send  ->  follow  ->  JobEnd
"""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paceline.cluster.job_client import SENDING, asking, connect, job_address
from paceline.cluster.job_log import ConnectionLost, LogFollower
from paceline.cluster.job_package import size_text
from paceline.cluster.job_plan import JobPlan
from paceline.cluster.nodes import Node, nodes_without_autoscaler, rooms_of
from paceline.cluster.placement import fits, too_small
from paceline.cluster.preflight import Resources, request_of, uses_gpu
from paceline.cluster.signals import first_interrupt_calls, terminating_interrupts
from paceline.cluster.waiting_for_resources import refusal
from paceline.errors import BAD_ENVIRONMENT, INTERRUPTED, OK, EnvironmentFault
from paceline.redaction import redact

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

NODES = "/api/v0/nodes?detail=1&limit=10000"
STATUS = "/api/cluster_status"
SIGNALLED = 128
"""Number that shells add to the signal that ended a process."""


@dataclass(frozen=True)
class JobEnd:
    """End of a submitted job, or its state if it may continue."""

    job_id: str
    address: str
    """Address of the dashboard, without credentials."""
    status: str
    """`succeeded`, `failed` or `stopped`; of one that may continue `submitted`, or `left` after a signal."""
    exit_code: int
    """The driver's own, see `paceline.errors`; 128 and the signal when one killed it, 3 when it could not be started,
    130 when the job was stopped, or is not followed any more."""
    message: str = ""
    """Reason that Ray gives for a job whose driver could not be started; otherwise empty."""
    result: dict[str, Any] | None = None
    """Result that the driver printed, if it was asked for JSON; otherwise None."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return asdict(self)


def submit(
    plan: JobPlan,
    address: str | None = None,
    wait: bool = True,
    write: Callable[[str], Any] | None = None,
    tell: Callable[[str], Any] | None = None,
    hides_result: bool = False,
) -> JobEnd:
    """Send a job to a cluster, and follow it.

    While it is followed, the first SIGINT or SIGTERM asks the job to save its state and stop, and is waited for. The
    second one leaves the job.

    Args:
        address: of the cluster's dashboard; None: as `job_address` finds it.
        wait: follow the job to its end.
        write: takes the lines of the driver's log; None: stdout.
        tell: takes messages; None: stderr.
        hides_result: leave the line of the driver's result out of its log: it is in the `JobEnd`.

    Raises:
        EnvironmentFault: no dashboard answers, or it asks for a token, a job of the same name continues, or the cluster
            is too small for good.
    """
    dashboard = _Dashboard.at(address, tell, plan.warnings)
    with terminating_interrupts(), asking(dashboard.url):
        dashboard.refuse_second(plan)
        dashboard.refuse_impossible(plan)
        job_id = dashboard.send(plan)
    if not wait:
        dashboard.tell(dashboard.ways(job_id))
        return JobEnd(job_id, dashboard.url, "submitted", OK)
    with first_interrupt_calls(lambda: dashboard.stop(job_id)):
        return dashboard.follow(job_id, write, hides_result)


def follow(
    job_id: str,
    address: str | None = None,
    write: Callable[[str], Any] | None = None,
    tell: Callable[[str], Any] | None = None,
    hides_result: bool = False,
) -> JobEnd:
    """Follow a job that was submitted before, from the beginning of its log. SIGINT and SIGTERM leave the job.

    Raises:
        EnvironmentFault: no dashboard answers, or the cluster knows no such job.
    """
    dashboard = _Dashboard.at(address, tell)
    with terminating_interrupts():
        return dashboard.follow(job_id, write, hides_result)


@dataclass(frozen=True)
class _Dashboard:
    """A cluster's dashboard that has answered."""

    client: Any
    """Client that `connect` has returned."""
    url: str
    """Address of the dashboard, without credentials."""
    tell: Callable[[str], Any]

    @classmethod
    def at(cls, address: str | None, tell: Callable[[str], Any] | None, warnings: Sequence[str] = ()) -> "_Dashboard":
        tell = tell or _to_stderr
        for warning in warnings:
            tell(f"warning: {warning}")
        client = connect(job_address(address))
        return cls(client, redact(str(client.get_address())), tell)

    def refuse_second(self, plan: JobPlan) -> None:
        """Refuse a second job of one run: it would end at once on the cluster, or continue with the first one's run."""
        for job in self.client.list_jobs():
            metadata = job.metadata or {}
            if not job.status.is_terminal() and all(metadata.get(key) == value for key, value in plan.identity.items()):
                job_id = str(job.submission_id)
                message = f"a job of the name {plan.config.name} is in progress: {job_id}\n{self.ways(job_id)}"
                raise EnvironmentFault(message, "job-running", job_id=job_id, address=self.url)

    def refuse_impossible(self, plan: JobPlan) -> None:
        """Refuse a job whose workers the cluster's nodes can never hold.

        The job itself checks again, and checks more. It is sent if this check lacks information: the cluster may have
        an autoscaler, the job is to wait for nodes, or the trials of its sweep differ in `scaling`.

        Raises:
            EnvironmentFault: the cluster is too small, and nothing adds nodes to it.
        """
        config = plan.config
        axes = config.sweep.space if plan.kind == "sweep" and config.sweep is not None else ()
        if not config.scaling.num_workers or plan.waits_for_nodes or any(axis.startswith("scaling") for axis in axes):
            return
        nodes: list[Node] = []
        with suppress(Exception):  # another version of Ray, say: whatever it is, the job is not refused for it
            nodes = nodes_without_autoscaler(self.client.read(NODES), self.client.read(STATUS))
        rooms = rooms_of(nodes)
        request = request_of(config, uses_gpu(config, Resources(tuple(rooms))))
        if nodes and not fits(request, rooms):
            raise too_small(request, rooms, refusal(request, nodes, None, f"the cluster at {self.url}"))

    def send(self, plan: JobPlan) -> str:
        """Submit a job; returns its id."""
        job_id = plan.new_id()
        files = len(plan.folder.files)
        self.tell(
            f"sending {plan.folder.folder} ({files:,} {'file' if files == 1 else 'files'}, "
            f"{size_text(plan.folder.size_bytes)}) and paceline ({size_text(plan.package.size_bytes)}) to {self.url}, "
            "unless they are there"
        )
        before, self.client.timeout = self.client.timeout, SENDING
        with TemporaryDirectory(prefix="paceline-job-") as place:
            archive = Path(place) / "working_dir.zip"
            plan.folder.write(archive)
            environment = plan.environment.to_ray(str(archive))
            try:
                self.client.submit_job(
                    entrypoint=plan.entrypoint, submission_id=job_id, runtime_env=environment, metadata=plan.identity
                )
            except KeyboardInterrupt:
                self.tell(f"whether it was submitted is not known\n{self.ways(job_id)}")
                raise
        self.client.timeout = before
        self.tell(f"job {job_id}: {redact(plan.entrypoint)}")
        return job_id

    def stop(self, job_id: str) -> None:
        """Ask a job to stop, in a thread: called by a signal's handler, where nothing may be waited for."""

        def stop() -> None:
            try:
                with asking(self.url):
                    self.client.stop_job(job_id)
            except EnvironmentFault as fault:
                self.tell(f"the job {job_id} could not be asked to stop: {fault.message}\n{self.ways(job_id)}")

        self.tell(f"stopping the job {job_id}: it saves its state first; Ctrl-C again leaves it to that")
        threading.Thread(target=stop, name="stop-job", daemon=True).start()

    def follow(self, job_id: str, write: Callable[[str], Any] | None, hides_result: bool) -> JobEnd:
        """Show a job's log until it has ended, or is left."""
        follower = LogFollower(self.client, job_id, write or _to_stdout, self.tell, hides_result)
        try:
            with asking(self.url):
                details = follower.follow()
        except KeyboardInterrupt:
            self.tell(f"the job {job_id} is not followed any more\n{self.ways(job_id)}")
            return JobEnd(job_id, self.url, "left", INTERRUPTED)
        except BrokenPipeError:  # what read the log is gone
            self.tell(f"the job {job_id} continues\n{self.ways(job_id)}")
            raise
        except ConnectionLost as fault:
            message = f"{fault.message}\n{self.ways(job_id)}"
            raise ConnectionLost(message, fault.code, job_id=job_id, address=self.url) from None
        end = _end_of(details, job_id, self.url, follower.result)
        self.tell(_closing_words(end))
        return end

    def ways(self, job_id: str) -> str:
        """Return the commands that follow a job, and stop it."""
        return (
            f"to follow it:  paceline submit --follow {job_id} --address {self.url}\n"
            f"to stop it, with its state saved:  ray job stop {job_id} --address {self.url}"
        )


def _end_of(details: "JobDetails", job_id: str, url: str, result: dict[str, Any] | None) -> JobEnd:
    status = str(details.status.value).lower()
    code, message = details.driver_exit_code, ""
    if status == "stopped":
        code = INTERRUPTED
    elif code is None and status == "succeeded":
        code = OK
    elif code is None:
        code, message = BAD_ENVIRONMENT, redact(details.message or "Ray does not say why")
    elif code < 0:
        code = SIGNALLED - code
    return JobEnd(job_id, url, status, code, message, result)


def _closing_words(end: JobEnd) -> str:
    if end.message:
        return f"the job {end.job_id} could not be started, or its node was lost: {end.message}"
    if end.status == "stopped":
        return f"the job {end.job_id} was stopped; submitted again, it resumes from its newest checkpoint"
    if end.exit_code > SIGNALLED and end.exit_code != INTERRUPTED:
        return (
            f"the driver of the job {end.job_id} was killed (signal {end.exit_code - SIGNALLED}); submitted again, it "
            "resumes from its newest checkpoint"
        )
    return f"the job {end.job_id} {end.status} (exit code {end.exit_code})"


def _to_stdout(text: str) -> None:
    print(text, end="", flush=True)


def _to_stderr(text: str) -> None:
    print(redact(text), file=sys.stderr, flush=True)
