"""Starts MLflow's own server, which shows the runs in a browser."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from paceline.errors import EnvironmentFault
from paceline.private_files import open_private
from paceline.redaction import redact
from paceline.tracking.mlflow_probe import probe
from paceline.tracking.mlflow_views import newest
from paceline.tracking.tracking_uri import UI_PORT, experiments_url, is_http, sqlite_file

HOST = "127.0.0.1"
"""Nobody else can reach the server."""
START_SECONDS = 90.0
"""Time in which the server has to answer for the first time."""
STOP_SECONDS = 10.0
PORTS_TRIED = 20
_PROGRAM = f"""
import os, runpy, signal, sys, threading, time

def end_with(starter):
    while os.getppid() == starter:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep({STOP_SECONDS})
    os.killpg(os.getpid(), signal.SIGKILL)

threading.Thread(target=end_with, args=(int(sys.argv.pop(1)),), daemon=True).start()
runpy.run_module("mlflow", run_name="__main__", alter_sys=True)
"""
"""MLflow's server, which has a look now and then at whether the process that started it is still there. The system
could tell it at once, on Linux, but of the thread that started it, which may end before."""


def start_server(uri: str, port: int, log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a server on a store, as a process in a session of its own. End it with `stop_server`; should this process
    end without that, however that comes about, the server ends, too.

    Args:
        uri: a database. It goes through the environment: a command line can be read by everyone on the machine.
        port: must be free, see `free_port`.
        log: file for the server's output; by default it is thrown away.
    """
    options = ["--host", HOST, "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), "server", *options]
    environment = {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    database = sqlite_file(uri)
    folder = database.parent if database else Path.cwd()
    environment.setdefault("MLFLOW_ARTIFACTS_DESTINATION", (folder.absolute() / "mlartifacts").as_uri())
    output = subprocess.DEVNULL if log is None else open_private(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us first, and we end the server
        )
    finally:
        if log is not None:
            os.close(output)


def wait_until_up(server: "subprocess.Popen[bytes]", address: str, timeout_seconds: float = START_SECONDS) -> None:
    """Wait until a server that was just started answers, rather than another one that has taken its port meanwhile.

    Raises:
        EnvironmentFault: it ended, or took too long.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            probe(address, 1.0)
            if _listens(server, address):
                return
            raise EnvironmentFault(f"another program answers at {address}", "port-taken", address=address)
        except EnvironmentFault as fault:
            if server.poll() is not None:
                reason = f"MLflow's server ended with exit code {server.returncode}"
                raise EnvironmentFault(reason, "server-ended", exit_code=server.returncode) from None
            if time.monotonic() > deadline:
                reason = f"MLflow's server took more than {timeout_seconds:g} s: {fault.message}"
                raise EnvironmentFault(reason, "server-too-slow", seconds=timeout_seconds) from None
        time.sleep(0.2)


def _listens(server: "subprocess.Popen[bytes]", address: str) -> bool:
    """Return True if the server, or a process that it has started, listens there, or if the system does not say."""
    import psutil

    port = urlsplit(address).port
    try:
        starter = psutil.Process(server.pid)
        sockets = [each for process in (starter, *starter.children(True)) for each in process.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


def stop_server(server: "subprocess.Popen[bytes]") -> int:
    """End a server and its workers; returns its exit code."""
    server.terminate()
    try:
        return server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)  # with its workers, which share its session
        return server.wait()


def free_port(port: int) -> int:
    """The port itself, or the next one that nobody listens at; any free one for 0.

    Raises:
        EnvironmentFault: so many in a row are taken that something is wrong.
    """
    for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
        with socket.socket() as probing:
            probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probing.bind((HOST, candidate))
            except OSError:
                continue
            return int(probing.getsockname()[1])
    last = min(port + PORTS_TRIED - 1, 65_535)
    reason = f"no free port from {port} to {last}; name another one with --port"
    raise EnvironmentFault(reason, "no-free-port", first=port, last=last)


def ui(uri: str, port: int = UI_PORT) -> int:
    """Show the runs of a store until Ctrl-C, and print the links to the newest ones; runs in the foreground. Returns
    the exit code.

    Raises:
        EnvironmentFault: there is no store yet, or the server does not start.
    """
    if is_http(uri):
        probe(uri)
        print(f"These runs are on a server: {redact(uri)}")
        _print_links(uri)
        return 0
    database = sqlite_file(uri)
    if database is not None and not database.exists():
        reason = f"no runs here yet: there is no {database}; start one with `paceline train CONFIG`"
        raise EnvironmentFault(reason, "no-database", path=database)
    print("Starting MLflow's server, which can take half a minute ...", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's shell starts `... &` with it ignored
    for number in (signal.SIGTERM, signal.SIGHUP):  # which would end us without ending the server
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _end)
    for _ in range(PORTS_TRIED):
        code = _serve(uri, port, free_port(port))
        if code is not None:
            return code
    reason = "each port was taken by another program while MLflow's server started"
    raise EnvironmentFault(reason, "no-free-port", first=port)


def _print_links(address: str) -> None:
    for name, link in newest(address):
        print(f"Review: {link}  (the newest {redact(name)})", flush=True)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _serve(uri: str, wanted: int, port: int) -> int | None:
    """The exit code; None when another program has taken the port before the server did."""
    if wanted not in (0, port):
        print(f"Port {wanted} is taken, so it is {port} this time.", flush=True)
    address = f"http://{HOST}:{port}"
    server = start_server(uri, port)
    try:
        wait_until_up(server, address)
        print(f"Runs: {experiments_url(address)}  (Ctrl-C ends it)", flush=True)
        _print_links(address)
        return server.wait()
    except EnvironmentFault:
        if server.poll() is not None and free_port(port) != port:
            return None
        raise
    except KeyboardInterrupt:
        return 0
    finally:
        if server.poll() is None:
            stop_server(server)
