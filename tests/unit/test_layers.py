"""Unit tests are kept from starting processes and from connecting to servers."""

import os
import socket
import subprocess
import sys

import pytest


def test_what_leaves_the_process_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"subprocess\.Popen"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match=r"os\.fork"):
        os.fork()
    with socket.socket() as client, pytest.raises(RuntimeError, match=r"socket\.connect"):
        client.connect(("127.0.0.1", 9))
