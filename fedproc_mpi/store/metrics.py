"""metrics.jsonl, a line per round, and summary.json."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedproc_mpi.config import Config, read_json
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.store.files import METRICS, SUMMARY

VALIDATED = "val_accuracy"  # by which the best model is chosen


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


def best_line(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first line with the highest validation accuracy; None where none has any."""
    validated = [line for line in lines if line.get(VALIDATED) is not None]
    return max(validated, key=lambda line: float(line[VALIDATED]), default=None)


def rounds_since_best(lines: Sequence[Mapping[str, Any]]) -> int:
    """For how many rounds the validation accuracy got no better, as of the last round that has one."""
    best = best_line(lines)
    validated = [line["round"] for line in lines if line.get(VALIDATED) is not None]
    return 0 if best is None else int(validated[-1] - best["round"])


def summarise(
    config: Config,
    lines: Sequence[Mapping[str, Any]],
    final: Mapping[str, Any],
    best: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """What summary.json holds, from the rounds' lines and more facts.

    final, best: what the test set says of the last model, and of the best one by validation; both empty
    without a validation set. The best accuracy is then the highest that the test set gave in any round.
    A best model that was lost is known by its round alone; its accuracies are None.
    """
    seconds: dict[str, float] = {}
    for line in lines:
        for phase, value in line["seconds"].items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    last = final or lines[-1]
    if best:
        chosen = {f"best_{k}": best.get(k) for k in ("round", "accuracy", "balanced_accuracy", VALIDATED)}
    else:
        # Personal models are those of the round's cohort, at the end all: only like is compared with like.
        like = [
            line
            for line in lines
            if line.get("accuracy") is not None
            and line.get("clients_evaluated") == last.get("clients_evaluated")
        ]
        highest = max(like, key=lambda line: float(line["accuracy"]), default=last)
        chosen = {"best_round": highest.get("round"), "best_accuracy": highest["accuracy"]}
    return {
        "algorithm": config.algorithm,
        "rounds": len(lines),
        "final_accuracy": last["accuracy"],
        **chosen,
        "best_chosen_on": "validation" if best else "test",
        **{k: v for k, v in last.items() if k in ("clients_evaluated", "class_recall") or _is_accuracy(k)},
        **facts,
        "total_seconds": round(sum(line["round_seconds"] for line in lines), 3),
        "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
    }


def _is_accuracy(key: str) -> bool:
    return "accuracy" in key and key != "accuracy"


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json. UserError where it is damaged."""
    summary = read_json(run_dir / SUMMARY)
    if "model_sha256" not in summary:
        raise UserError(f"{run_dir / SUMMARY} is no run's summary: delete it, and --resume makes it again")
    return summary
