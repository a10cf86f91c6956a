"""A kill -9 of a whole job, and going on from what it left."""

import json
import shutil
from pathlib import Path

import torch

from fedproc_mpi import Config, run
from fedproc_mpi.store.clients import client_file
from fedproc_mpi.store.files import CHECKPOINT
from tests.support.processes import finish, kill_tree, start, wait_for
from tests.unit.test_client_state import files_in, kept_versions

SCAFFOLD = ["--algorithm", "scaffold", "--rounds", "24", "--local-epochs", "1", "--sample-rate", "0.6"]
SCAFFOLD += ["--checkpoint-every", "5"]


def test_kill_and_resume_and_a_damaged_checkpoint(shards: Path, tmp_path: Path) -> None:
    """SCAFFOLD on 3 ranks, kill -9 between checkpoints; goes on alone and on 4 ranks to the same hash."""
    config = {"algorithm": "scaffold", "rounds": 24, "local_epochs": 1, "sample_rate": 0.6}
    killed = tmp_path / "killed"
    job = start(
        ["-m", "fedproc_mpi", *SCAFFOLD, "--shards", str(shards), "--run-dir", str(killed)],
        tmp_path,
        ranks=3,
    )
    straight = run(Config.create(**config, shards=str(shards), run_dir=str(tmp_path / "straight")))
    assert straight is not None
    metrics = killed / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= 12)
    kill_tree(job.pid)
    finish(job)
    assert kept_versions(killed)
    assert not (killed / "summary.json").exists()
    damaged = Path(shutil.copytree(killed, tmp_path / "damaged"))
    shutil.copytree(killed, tmp_path / "wider")
    flags = [*SCAFFOLD, "--shards", str(shards), "--run-dir", "wider", "--resume"]
    wider = start(["-m", "fedproc_mpi", *flags], tmp_path, ranks=4)
    (damaged / CHECKPOINT).write_bytes((damaged / CHECKPOINT).read_bytes()[:1000])
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
        assert files_in(run_dir) == {client_file(run_dir, k, t).name for k, t in named}
        for k, t in newest.items():
            straights = torch.load(client_file(tmp_path / "straight", k, t))
            assert torch.equal(torch.load(client_file(run_dir, k, t))["control"], straights["control"])
    assert first_rounds[0] % 5 == 0
    assert first_rounds[0] >= 10
    assert first_rounds[1] == first_rounds[0] - 5
    done = finish(wider)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "wider" / "summary.json").read_text())
    assert summary["model_sha256"] == straight.summary["model_sha256"]
    assert summary["resumed_at_round"] == first_rounds[0]
    assert [json.loads(line)["round"] for line in (tmp_path / "wider" / "metrics.jsonl").open()] == list(
        range(24)
    )
