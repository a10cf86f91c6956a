"""What clients keep, over a kill; and a client that diverges on one of several ranks."""

import shutil
from pathlib import Path

import torch
from fedproc_mpi.store.client_state import state_path

from fedproc_mpi import Config, run
from fedproc_mpi.store.checkpoint import NAME
from tests.support.processes import call, finish, kill_tree, start, wait_for
from tests.unit.test_client_state import files_in, kept_versions, poisoned

SCAFFOLD = ["--algorithm", "scaffold", "--rounds", "24", "--local-epochs", "1", "--sample-rate", "0.6"]
SCAFFOLD += ["--checkpoint-every", "5"]


def test_kill_and_resume_and_a_damaged_checkpoint(shards: Path, tmp_path: Path) -> None:
    """SCAFFOLD on 3 ranks, kill -9 between checkpoints; goes on in one process to the same hash."""
    config = {"algorithm": "scaffold", "rounds": 24, "local_epochs": 1, "sample_rate": 0.6}
    straight = run(Config.create(**config, shards=str(shards), run_dir=str(tmp_path / "straight")))
    assert straight is not None
    killed = tmp_path / "killed"
    job = start(
        ["-m", "fedproc_mpi", *SCAFFOLD, "--shards", str(shards), "--run-dir", str(killed)],
        tmp_path,
        ranks=3,
    )
    metrics = killed / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 12)
    kill_tree(job.pid)
    finish(job)
    assert kept_versions(killed)
    damaged = tmp_path / "damaged"
    shutil.copytree(killed, damaged)
    (damaged / NAME).write_bytes((damaged / NAME).read_bytes()[:1000])
    first_rounds = []
    for run_dir in (killed, damaged):
        more = {"shards": str(shards), "run_dir": str(run_dir), "resume": True, "checkpoint_every": 5}
        result = run(Config.create(**config, **more))
        assert result is not None
        assert result.summary["model_sha256"] == straight.summary["model_sha256"]
        assert [line["round"] for line in result.metrics] == list(range(24))
        first_rounds.append(result.summary["resumed_at_round"])
        newest = dict(enumerate(kept_versions(run_dir)[0]))
        named = {(k, t) for versions in kept_versions(run_dir) for k, t in enumerate(versions)}
        assert files_in(run_dir) == {state_path(run_dir, k, t).name for k, t in named}
        for k, t in newest.items():
            straights = torch.load(state_path(tmp_path / "straight", k, t))
            assert torch.equal(torch.load(state_path(run_dir, k, t))["control"], straights["control"])
    assert first_rounds[0] % 5 == 0
    assert first_rounds[0] >= 10
    assert first_rounds[1] == first_rounds[0] - 5


def test_a_diverged_client_stops_all_ranks(shards: Path, tmp_path: Path) -> None:
    done = call(["-m", "fedproc_mpi", *poisoned(shards, tmp_path, "1", "stop")], tmp_path, ranks=3)
    assert done.returncode == 3
    assert "fedproc_mpi: round 1: client 1: model classifier.bias reached nan" in done.stderr
    assert "Traceback" not in done.stderr
