"""python results/table.py RUN…: a Markdown table of finished (or unfinished) runs, from what they left."""

import json
import statistics
import sys
from pathlib import Path

import torch

COLUMNS = (
    "algorithm",
    "seed",
    "rounds",
    "accuracy, %",
    "own mix: mean ± std, %",
    "worst decile, %",
    "by prototype: global, own mix, %",
    "s a round (median)",
    "evaluation, % of it",
    "client state, % of it",
    "bytes a round, one way",
    "weights_sha256",
)


def percent(line: dict, key: str, std: str = "") -> str:
    if line.get(key) is None:
        return "–"
    return f"{100 * line[key]:.1f}" + (f" ± {100 * line[std]:.1f}" if std in line else "")


def row(run_dir: Path) -> list[str]:
    lines = [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((run_dir / "config.json").read_text())
    last = next(line for line in reversed(lines) if line["accuracy"] is not None)
    seconds = sum(line["round_seconds"] for line in lines)
    typical = statistics.median(line["round_seconds"] for line in lines)

    def share(phase: str) -> str:
        return f"{100 * sum(line['seconds'].get(phase, 0) for line in lines) / seconds:.1f}"

    # What the server sends a round, to be received by each rank; a reduce brings as many values back.
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)["state"]
    sent = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    summary = run_dir / "summary.json"
    digest = json.loads(summary.read_text())["weights_sha256"][:12] if summary.exists() else "unfinished"
    by_prototype = [percent(last, k) for k in ("prototype_accuracy", "client_prototype_accuracy_mean")]
    return [
        config["algorithm"],
        str(config["seed"]),
        str(len(lines)),
        percent(last, "accuracy", "accuracy_std"),
        percent(last, "client_accuracy_mean", "client_accuracy_std"),
        percent(last, "client_accuracy_worst_decile"),
        ", ".join(by_prototype),
        f"{typical:.1f}",
        share("evaluate"),
        share("client_state"),
        f"{sent:,}",
        digest,
    ]


def main(run_dirs: list[str]) -> None:
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name in run_dirs:
        if (Path(name) / "metrics.jsonl").exists():
            print("| " + " | ".join(row(Path(name))) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
