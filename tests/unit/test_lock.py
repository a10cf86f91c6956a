"""One writer per run directory: who is refused, who takes over, who notices that he was taken over."""

import os
import socket
import threading
from pathlib import Path

import pytest

from fedproc_mpi import UserError
from fedproc_mpi.store import lock
from fedproc_mpi.store.lock import RunLock
from tests.support.processes import wait_for

LEASE = 1.5


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", LEASE)


def held_elsewhere(run_dir: Path, host: str = "elsewhere", pid: int = 7) -> Path:
    """A lock file as a process on another host leaves it."""
    text = f"filelock/2\npid={pid}\nhost={host}\nmode=lease\ntoken={'0' * 32}\nduration={LEASE}\n"
    (run_dir / "lock").write_text(text)
    return run_dir / "lock"


def test_the_second_of_this_host_is_refused_with_host_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    first = RunLock(tmp_path)
    words = rf"is being written by process {os.getpid()} on {socket.gethostname()}; wait .* --run-dir"
    with pytest.raises(UserError, match=words):
        RunLock(tmp_path)
    first.check()
    first.release()
    assert not (tmp_path / "lock").exists()
    RunLock(tmp_path).release()


def test_a_dead_process_of_this_host_is_told_and_taken_over_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = 2**22 - 1  # above the largest process number of a common kernel
    held_elsewhere(tmp_path, socket.gethostname(), dead)
    RunLock(tmp_path).release()
    assert f"process {dead} on {socket.gethostname()} is dead; took over its lock" in capsys.readouterr().out


def test_another_host_that_shows_no_life_is_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_elsewhere(tmp_path)
    RunLock(tmp_path).release()
    told = capsys.readouterr().out
    assert "is locked by process 7 on elsewhere; is it alive? …" in told
    assert "process 7 on elsewhere is dead; took over its lock" in told


def test_another_host_that_lives_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, done = held_elsewhere(tmp_path), threading.Event()

    def live() -> None:
        while not done.wait(LEASE / 5):
            os.utime(path)

    heart = threading.Thread(target=live)
    heart.start()
    monkeypatch.setattr(lock, "PATIENCE", 1.0)
    try:
        with pytest.raises(UserError, match=r"is being written by process 7 on elsewhere; .*delete .*lock"):
            RunLock(tmp_path)
    finally:
        done.set()
        heart.join()


def test_who_was_taken_over_notices(tmp_path: Path) -> None:
    mine = RunLock(tmp_path)
    (tmp_path / "lock").unlink()
    held_elsewhere(tmp_path)
    wait_for(lambda: mine._lease.compromise is not None, seconds=20)
    with pytest.raises(UserError, match="process 7 on elsewhere took the run over; nothing more is written"):
        mine.check()
