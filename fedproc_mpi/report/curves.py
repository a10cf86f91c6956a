"""Accuracy over rounds, one curve per run."""

from collections.abc import Sequence
from pathlib import Path

from fedproc_mpi.config import read_json
from fedproc_mpi.figure import new_figure
from fedproc_mpi.store.files import CONFIG
from fedproc_mpi.store.metrics import read_metrics


def plot_accuracy(run_dirs: Sequence[Path], out: Path) -> Path:
    """Draw the test accuracy of each run over its rounds as a PNG; returns its path."""
    figure = new_figure(figsize=(6, 4), layout="constrained")
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for run_dir in run_dirs:
        lines = read_metrics(run_dir)
        points = [
            (line["round"] + 1, 100 * line["accuracy"]) for line in lines if line["accuracy"] is not None
        ]
        config = read_json(run_dir / CONFIG)
        label = f"{Path(config['algorithm']).stem[:40]} on {Path(config['shards']).stem[:40]}"
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(out, dpi=120)
    return out
