"""Law 1: the same hash, and the same figures, on every number of ranks, transport and load."""

import json
from pathlib import Path

import pytest

from data_prep.cli import main as data_prep
from fedproc_mpi import Config, UserError, load_model, run
from fedproc_mpi.learn.flat import list_sha256, tensors_sha256
from tests.support import cases
from tests.support.processes import ROOT, finish, start

PARTS = {
    "1-mpi": "VARIANTS",
    "2-mpi": "VARIANTS",
    "3-mpi": "CASES",
    "3-mpi-busy": "VARIANTS",
    "4-torch": "CASES",
    "5-mpi": "CASES",
}


def test_the_same_hash_on_every_number_of_ranks_and_transport(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["digits", "--clients", "5", "--val-share", "0.2", "--out", cases.VALIDATED]
    assert data_prep(words) == 0
    parts = [f"{part}:{names}" for part, names in PARTS.items()]
    script = str(ROOT / "tests" / "support" / "run_cases.py")
    job = start([script, str(shards), str(tmp_path), *parts], tmp_path, ranks=5)
    alone = {}
    for name, options in cases.CASES.items():
        run_dir = str(tmp_path / f"{name}-alone")
        result = run(Config.create(**{"shards": str(shards), **options}, run_dir=run_dir))
        assert result is not None
        alone[name] = cases.outcome(result)
    done = finish(job, timeout=280)
    assert done.returncode == 0, done.stderr
    for part, names in PARTS.items():
        found = json.loads((tmp_path / f"{part}.json").read_text())
        assert set(found) == set(getattr(cases, names)), part
        for name, outcome in found.items():
            assert outcome == alone[name], f"{name} on {part}"
    assert len({alone[name]["model_sha256"] for name in cases.VARIANTS}) == len(cases.VARIANTS)
    assert 2 < len(alone["early stopping"]["rounds"]) < 12
    excluded = [line.get("excluded", []) for line in alone["excluded"]["rounds"]]
    assert [[k for k, _ in line] for line in excluded] == [[], [0, 2], []]
    hash_is_over_the_clients_models(tmp_path / "fedproto-two-kinds-5-mpi")


def hash_is_over_the_clients_models(run_dir: Path) -> None:
    models = [load_model(run_dir, client=k) for k in range(5)]
    kinds = {type(model.model).__name__ for model in models}
    assert kinds == {"Normed", "Wide"}
    digests = []
    for model in models:
        assert model.prototypes_KD is not None
        digests.append(tensors_sha256({**model.model.state_dict(), "prototypes": model.prototypes_KD}))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["model_sha256"] == list_sha256(digests)
    for client in (None, 5, -1):
        with pytest.raises(UserError, match="each client has its own model"):
            load_model(run_dir, client=client)
