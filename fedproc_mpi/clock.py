"""Seconds by phase: what `metrics.jsonl` tells of where a round's time went."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up seconds by phase; `seconds` maps a phase's name to its sum."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._started = self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """Count the time since the last mark as `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Count the time of a `with` block as `phase`; marks are left alone."""
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds from the start to the last mark."""
        return self._last - self._started
