"""metrics.jsonl, a line per round, and summary.json."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedproc_mpi.config import Config, read_json
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.store.files import METRICS, SUMMARY


def text(line: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl as it is written."""
    return json.dumps(line) + "\n"


def append_line(run_dir: Path, line: Mapping[str, Any]) -> None:
    """One more line of metrics.jsonl. UserError where it cannot be written."""
    try:
        with open(run_dir / METRICS, "a", encoding="utf-8") as file:
            file.write(text(line))
    except OSError as error:
        raise UserError(f"cannot write {run_dir / METRICS}: {reason(error)}") from error


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rounds' lines of a run, without any that are damaged. UserError where the file cannot be read."""
    path, lines = run_dir / METRICS, []
    try:
        texts = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    for written in texts:
        with suppress(ValueError):
            line = json.loads(written)
            if isinstance(line, dict) and {"round", "seconds", "round_seconds"} <= set(line):
                lines.append(line)
    return lines


def summarise(config: Config, lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What summary.json holds, from the rounds' lines and more facts."""
    seconds: dict[str, float] = {}
    for line in lines:
        for phase, value in line["seconds"].items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    # Personal models are those of the round's cohort, at the end all: only like is compared with like.
    last = lines[-1]
    accuracies = [
        line["accuracy"]
        for line in lines
        if line.get("accuracy") is not None and line.get("clients_evaluated") == last.get("clients_evaluated")
    ]
    return {
        "algorithm": config.algorithm,
        "rounds": config.rounds,
        "final_accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        **{
            k: v for k, v in last.items() if k == "clients_evaluated" or ("accuracy" in k and k != "accuracy")
        },
        **facts,
        "total_seconds": round(sum(line["round_seconds"] for line in lines), 3),
        "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
    }


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json. UserError where it is damaged."""
    summary = read_json(run_dir / SUMMARY)
    if "model_sha256" not in summary:
        raise UserError(f"{run_dir / SUMMARY} is no run's summary: delete it, and --resume makes it again")
    return summary
