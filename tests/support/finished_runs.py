"""Directories as finished runs leave them, with figures of a test's choice."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATA = {"fingerprint": "ab" * 32, "client_names": [], "class_names": ["a", "b"], "image_shape": [8, 8, 1]}
DATA |= {"mean": [0.5], "std": [0.25]}


def make_run(
    path: Path,
    accuracy: float,
    algorithm: str = "fedavg",
    seed: int = 0,
    summary: Mapping[str, Any] | None = None,
    fingerprint: str = "ab" * 32,
    header: Mapping[str, Any] | None = None,
    lines: Sequence[Mapping[str, Any]] | None = None,
    **config: Any,
) -> Path:
    """A directory as a finished run leaves it, with two rounds; config: more of its settings.

    header: more of what the record tells of the data. lines: the rounds, in place of the two.
    """
    path.mkdir(parents=True)
    data = DATA | {"fingerprint": fingerprint} | dict(header or {})
    record = {
        "algorithm": algorithm,
        "shards": "shards/x.h5",
        "seed": seed,
        "lr": 0.01,
        **config,
        "data": data,
    }
    (path / "config.json").write_text(json.dumps(record))
    lines = lines or [
        {"round": t, "accuracy": accuracy - 0.1 + 0.1 * t, "seconds": {}, "round_seconds": 1.0}
        for t in (0, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {"final_accuracy": accuracy, "best_accuracy": accuracy + 0.01, "model_sha256": "0"}
    (path / "summary.json").write_text(json.dumps(found | dict(summary or {})))
    (path / "model.pt").write_bytes(b"")
    return path
