"""The scaling command with real ranks: its table is that of the runs' own lines."""

import csv
import json
from pathlib import Path
from statistics import median

from tests.support.processes import activated, call


def test_strong_scaling_on_one_and_two_client_ranks(tmp_path: Path) -> None:
    words = ["-m", "fedproc_mpi.scaling", "strong", "--clients", "2", "--samples", "20", "--rounds", "3"]
    env = {"PATH": activated()}
    done = call([*words, "--flags=--batch-size 16"], tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs/scaling"
    with (out / "strong.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client ranks"] for row in rows] == ["1", "2"]
    hashes = set()
    for row, name in zip(rows, ("strong-r1-m2-c2", "strong-r2-m2-c2"), strict=True):
        lines = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
        assert row["s per round"] == f"{median(line['round_seconds'] for line in lines[1:]):.3f}"
        summary = json.loads((out / name / "summary.json").read_text())
        assert summary["ranks"] == int(row["client ranks"]) + 1
        assert len(summary["peak_memory_mb"]) == summary["ranks"]
        assert min(summary["peak_memory_mb"]) > 100
        hashes.add(summary["model_sha256"])
    assert len(hashes) == 1
    # FedProc's state: float32 weights, counters and prototypes out; float64 sums and weights back.
    assert int(rows[0]["bytes sent"].replace(",", "")) > 1.9 * int(rows[0]["bytes received"].replace(",", ""))
    text = (out / "scaling.md").read_text()
    assert "PREDICTION" in text
    assert "mean error on sizes that the fit has not seen" in text
    for name in ("strong.png", "predicted.png", "scaling.html"):
        assert (out / name).stat().st_size > 5000
    # What is finished is not run again.
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    assert call([*words, "--flags=--batch-size 16"], tmp_path, env=env).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")} == before
