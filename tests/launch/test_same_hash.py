"""Law 1: every algorithm gives the same hash on every number of ranks and transport."""

import json
from pathlib import Path

import pytest

from fedproc_mpi import Config, UserError, load_model, run
from fedproc_mpi.learn.flat import list_sha256, tensors_sha256
from tests.support.cases import CASES, SMALL
from tests.support.processes import ROOT, call

PARTS = ("3-mpi", "5-mpi", "4-torch")


def test_the_same_hash_on_every_number_of_ranks_and_transport(shards: Path, tmp_path: Path) -> None:
    """Every algorithm with sampling, a BatchNorm model, two kinds of personal models, excluded clients."""
    script = str(ROOT / "tests" / "support" / "run_on_ranks.py")
    done = call([script, str(shards), str(tmp_path), *PARTS], tmp_path, ranks=5, timeout=300)
    assert done.returncode == 0, done.stderr
    on_ranks = [json.loads((tmp_path / f"hashes-{part}.json").read_text()) for part in PARTS]
    for name, options in CASES.items():
        config = {**SMALL, **options}
        result = run(Config.create(shards=str(shards), run_dir=str(tmp_path / f"{name}-alone"), **config))
        assert result is not None
        expected = [result.summary["model_sha256"], result.summary["final_accuracy"]]
        assert [found[name] for found in on_ranks] == [expected] * len(PARTS), name
    lines = [
        [json.loads(text) for text in (tmp_path / f"excluded-{n}" / "metrics.jsonl").read_text().splitlines()]
        for n in ("alone", *PARTS)
    ]
    assert [[k for k, _ in line.get("excluded", [])] for line in lines[0]] == [[], [0, 2], []]
    for other in lines[1:]:
        for mine, theirs in zip(lines[0], other, strict=True):
            for key in set(mine) - {"seconds", "round_seconds"}:
                assert mine[key] == theirs[key], key
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
