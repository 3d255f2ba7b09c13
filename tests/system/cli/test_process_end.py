"""A process that ends without freeing what it has imported ends as any other for everybody else."""

import subprocess
import sys

PROGRAM = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from paceline.process_end import end_process

class Freed:
    def __del__(self):
        print("freed")

freed = Freed()
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
ThreadPoolExecutor(1).submit(print, "executor").result()
print("error", file=sys.stderr, end="")
end_process(3)
"""


def test_threads_end_handlers_are_called_and_streams_are_written() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stdout.split() == ["executor", "thread", "registered"]
    assert done.stderr == "error"
