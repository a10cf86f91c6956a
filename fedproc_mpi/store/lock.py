"""One lock per run directory: of two processes or jobs that would write one, the second is refused."""

import socket
import time
from pathlib import Path

from filelock import OwnerRecord, SoftFileLease, Timeout

from fedproc_mpi.errors import UserError
from fedproc_mpi.terminal import say

NAME = "lock"
# The lock is a file made with O_EXCL, which NFS and Lustre can do where they refuse flock. The holder
# touches it every third of this time. Once it lay untouched for this long, by another host's own clock, its
# holder counts as dead. On one host the process itself is looked at, and a dead one's lock is free at once.
LEASE_SECONDS = 30.0
PATIENCE = 5.0  # seconds in which a process that was just killed is gone, and one that lives touches its lock


class RunLock:
    """Holds `RUN/lock` until `release`. On rank 0.

    Raises UserError, naming host and process, where another process holds it and is alive.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lease = SoftFileLease(run_dir / NAME, lease_duration=LEASE_SECONDS)
        before = self._lease.owner
        try:
            self._lease.acquire(timeout=0)
        except Timeout:
            here = before is not None and _runs_here(before)
            if not here:
                say(f"fedproc_mpi: {run_dir} is locked by {_words(before)}; is it alive? …")
            try:
                self._lease.acquire(timeout=PATIENCE if here else LEASE_SECONDS + PATIENCE)
            except Timeout:
                raise _refusal(run_dir, self._lease.owner) from None
        if before is not None:
            say(f"fedproc_mpi: {run_dir}: {_words(before)} is dead; took over its lock")

    def check(self) -> None:
        """Raise UserError where another process took the lock over, since this one slept for too long."""
        if self._lease.compromise is not None:
            raise UserError(
                f"{self._run_dir}: while this process stood still, {_words(self._lease.owner)} took the run "
                "over; nothing more is written here"
            )

    def release(self) -> None:
        """Let others write the run directory."""
        self._lease.release()


def refuse_if_written(run_dir: Path) -> None:
    """Raise UserError where a process of this host writes the run directory now."""
    owner = SoftFileLease(run_dir / NAME, lease_duration=LEASE_SECONDS).owner
    if owner is not None and _runs_here(owner):
        raise _refusal(run_dir, owner)


def is_written(run_dir: Path) -> bool:
    """Whether a process writes the run directory now, as far as that can be seen from here."""
    owner = SoftFileLease(run_dir / NAME, lease_duration=LEASE_SECONDS).owner
    if owner is None:
        return False
    if _host(owner) == socket.gethostname():
        return _runs_here(owner)
    try:
        return time.time() - (run_dir / NAME).stat().st_mtime < LEASE_SECONDS
    except OSError:
        return False


def _refusal(run_dir: Path, owner: OwnerRecord | None) -> UserError:
    return UserError(
        f"{run_dir} is being written by {_words(owner)}; wait for its end, or choose another --run-dir (if "
        f"no such process runs, delete {run_dir / NAME})"
    )


def _runs_here(owner: OwnerRecord) -> bool:
    """Whether this host has a process of that number."""
    if _host(owner) != socket.gethostname():
        return False
    try:
        state = Path(f"/proc/{owner.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return not Path("/proc/self/stat").exists()  # a system without /proc: assume that it runs
    return state not in "ZX"  # killed, but nobody has asked for its exit code: containers without an init


def _host(owner: OwnerRecord) -> str:
    return owner.hostname.split("?")[0]  # in a container filelock appends what tells it from others


def _words(owner: OwnerRecord | None) -> str:
    if owner is None:
        return "an unknown process"
    return f"process {owner.pid} on {_host(owner)}"
