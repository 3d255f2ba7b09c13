"""A fake of the part of Ray's dashboard that takes jobs, over real HTTP and websockets, with planted faults."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from zipfile import ZipFile

from aiohttp import web

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Dashboard:
    """One job at a time: what it says and how it ends is set by the test."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.packages: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.log = ""
        self.outcome: tuple[str, int | None, str | None] | None = ("SUCCEEDED", 0, None)
        """Status, exit code and message of a job whose log has been sent; None: it goes on."""
        self.cuts: list[int] = []
        """At which characters of the log the connection breaks, once each."""
        self.closes: list[int] = []
        """Where the log is closed in good order, although the job goes on."""
        self.stop_status: int | None = 200
        """How a request to stop a job is answered. 200: the job says something, and ends; None: it stays."""
        self.nodes: list[dict[str, float]] | None = None
        """Resources of each node; None: it does not tell."""
        self.node_types: list[str] | None = None
        """As an autoscaler reports them; None: there is none, and each node is a type of its own."""
        self.token: str | None = None
        self.is_frozen = False
        """Open connections stay so, and say nothing; new requests break off."""
        self.port = 0
        self.tails = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def submitted(self) -> dict[str, Any]:
        """What the only job was submitted with."""
        (job,) = (each for each in self.jobs.values() if "request" in each)
        return dict(job["request"])

    def unpacked(self, uri: str) -> dict[str, bytes]:
        """The files of an uploaded package."""
        with ZipFile(io.BytesIO(self.packages[uri.removeprefix("gcs://")])) as packed:
            return {name: packed.read(name) for name in packed.namelist()}

    def has_job(self, job_id: str, status: str = "RUNNING", **metadata: str) -> None:
        self.jobs[job_id] = {"metadata": metadata, "outcome": (status, None, None)}

    def details(self, job_id: str) -> dict[str, Any]:
        job = self.jobs[job_id]
        status, code, message = job["outcome"] or ("RUNNING", None, None)
        return {
            "type": "SUBMISSION",
            "submission_id": job_id,
            "entrypoint": "python",
            "status": status,
            "driver_exit_code": code,
            "message": message,
            "metadata": job["metadata"],
        }

    @contextmanager
    def running(self) -> Iterator["Dashboard"]:
        ready = threading.Event()
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def serve() -> None:
            runner = web.AppRunner(self._app(), shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", self.port)
            await site.start()
            self.port = runner.addresses[0][1]
            ready.set()
            await stop.wait()
            await runner.cleanup()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        try:
            assert ready.wait(60)
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._noted], client_max_size=100 * 2**20)
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/packages/{protocol}/{name}", self._package)
        app.router.add_put("/api/packages/{protocol}/{name}", self._upload)
        app.router.add_get("/api/v0/nodes", self._nodes)
        app.router.add_get("/api/cluster_status", self._status)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/{id}", self._details)
        app.router.add_post("/api/jobs/{id}/stop", self._stop)
        app.router.add_get("/api/jobs/{id}/logs", self._logs)
        app.router.add_get("/api/jobs/{id}/logs/tail", self._tail)
        return app

    @web.middleware
    async def _noted(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.headers.append(dict(request.headers))
        if self.is_frozen:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        if self.token is not None and "Authorization" not in request.headers:
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        if self.token is not None and request.headers["Authorization"] != f"Bearer {self.token}":
            return web.Response(status=403, text="Forbidden: Invalid authentication token")
        if "id" in request.match_info and request.match_info["id"] not in self.jobs:
            return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")
        return await handler(request)  # type: ignore[no-any-return]

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "x"})

    async def _package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _upload(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _nodes(self, request: web.Request) -> web.Response:
        if self.nodes is None:
            return web.Response(status=500)
        nodes = [
            {
                "node_id": f"5fab{number:052d}",
                "node_ip": f"10.0.0.{number}",
                "is_head_node": not number,
                "state": "ALIVE",
                "resources_total": resources,
                "labels": {},
            }
            for number, resources in enumerate(self.nodes)
        ]
        gone = {**nodes[0], "node_id": "dead", "state": "DEAD", "resources_total": {"CPU": 64.0, "GPU": 8.0}}
        return web.json_response({"result": True, "data": {"result": {"result": [*nodes, gone]}}})

    async def _status(self, request: web.Request) -> web.Response:
        own = [f"node5Fab{number:052d}" for number in range(len(self.nodes or []))]
        types = own if self.node_types is None else self.node_types
        report = {"activeNodes": dict.fromkeys(types, 1)} if types else None
        return web.json_response({"result": True, "data": {"clusterStatus": {"autoscalerReport": report}}})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response([self.details(job_id) for job_id in self.jobs])

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(await request.read())
        job_id = body["submission_id"]
        self.jobs[job_id] = {"metadata": body["metadata"], "outcome": None, "request": body}
        return web.json_response({"job_id": job_id, "submission_id": job_id})

    async def _details(self, request: web.Request) -> web.Response:
        return web.json_response(self.details(request.match_info["id"]))

    async def _stop(self, request: web.Request) -> web.Response:
        if self.stop_status not in (None, 200):
            return web.Response(status=self.stop_status, text="the job agent is gone")
        if self.stop_status == 200:
            self.log += "its state is saved\n"
            self.outcome = ("STOPPED", None, None)
        return web.json_response({"stopped": True})

    async def _logs(self, request: web.Request) -> web.Response:
        return web.json_response({"logs": self.log})

    async def _tail(self, request: web.Request) -> web.WebSocketResponse:
        self.tails += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        job, sent = self.jobs[request.match_info["id"]], 0
        while True:
            end = min([len(self.log), sent + 20, *(each for each in (*self.cuts, *self.closes) if each > sent)])
            if self.is_frozen:
                await asyncio.sleep(0.02)
                continue
            if sent < end:
                await socket.send_str(self.log[sent:end])
                sent = end
                await asyncio.sleep(0)
            if sent in self.cuts:
                self.cuts.remove(sent)
                assert request.transport is not None
                request.transport.abort()
                return socket
            if sent in self.closes:
                self.closes.remove(sent)
                return socket
            if sent == len(self.log):
                job["outcome"] = job["outcome"] or self.outcome
                if job["outcome"] and job["outcome"][0] in ENDED:
                    return socket
                await asyncio.sleep(0.02)
