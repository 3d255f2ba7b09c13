"""A clock that passes when a test says so, in place of the module `time` or of one of its functions."""


class FakeClock:
    """Seconds that a test sets; as a function it is `monotonic`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    time = monotonic = __call__

    def time_ns(self) -> int:
        return int(self.now * 1e9)
