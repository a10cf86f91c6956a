"""Two jobs on one run directory."""

import socket
from pathlib import Path

from tests.support.processes import call, finish, kill_tree, start, wait_for


def test_the_second_job_is_refused_and_a_killed_jobs_lock_is_taken_over(shards: Path, tmp_path: Path) -> None:
    flags = ["-m", "fedproc_mpi", "--shards", str(shards), "--local-epochs", "1", "--run-dir", "run"]
    many = [*flags, "--rounds", "100000"]
    first = start(many, tmp_path, ranks=2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0)
    second = call([*many, "--resume"], tmp_path, ranks=2)
    assert second.returncode == 2, second.stderr
    (line,) = [line for line in second.stderr.splitlines() if line.startswith("fedproc_mpi:")]
    assert "run is being written by process" in line
    assert f"on {socket.gethostname()}; wait for its end" in line
    kill_tree(first.pid)
    finish(first)
    # Its lock is still there; only what the run saved counts, and other --rounds are another run.
    assert (tmp_path / "run" / "lock").exists()
    third = start([*many, "--resume"], tmp_path)
    before = metrics.stat().st_size
    wait_for(lambda: metrics.stat().st_size > before or third.poll() is not None)
    kill_tree(third.pid)
    assert "is dead; took over its lock" in finish(third).stdout
