"""What a scaling study says: tables, and pictures with the ideal line and the α–β model's prediction."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedproc_mpi.figure import new_figure, save_figure
from fedproc_mpi.report.tables import NONE, Section, Table
from fedproc_mpi.studies.alphabeta import Fit
from fedproc_mpi.studies.points import Measured

PHASES = ("train", "prototypes", "client_state", "reduce", "server", "broadcast", "evaluate", "checkpoint")
PREDICTED = [2**k for k in range(11)]  # client ranks: 1 … 1,024
TITLES = {
    "strong": "Strong scaling: the same work on more client ranks",
    "weak": "Weak scaling: the same work for each client rank",
    "clients": "Clients and cohort, at a fixed number of ranks",
}


def section(axis: str, found: Sequence[Measured], caption: str, picture: str) -> Section:
    """The table of one axis. Speed-up and efficiency are against the fewest client ranks."""
    base = found[0]
    rows = []
    for one in found:
        ratio = base.round_seconds / one.round_seconds
        more = one.point.client_ranks / base.point.client_ranks
        cells = [NONE, NONE]
        if axis == "strong":
            cells = [f"{ratio:.2f}", f"{100 * ratio / more:.0f}"]
        elif axis == "weak":
            cells = [f"{ratio * more:.2f}", f"{100 * ratio:.0f}"]
        rows.append(
            [
                *map(str, (one.point.client_ranks, one.point.clients, one.point.cohort)),
                f"{one.round_seconds:.3f}",
                *cells,
                *(f"{one.seconds.get(phase, 0.0):.3f}" for phase in PHASES),
                f"{one.imbalance:.2f}",
                f"{one.broadcast_bytes:,}",
                f"{one.reduce_bytes:,}",
                f"{one.peak_memory_mb:,.0f}",
                str(one.rounds),
            ]
        )
    header = ["client ranks", "clients", "cohort", "s per round", "speed-up", "efficiency, %"]
    header += [f"{phase}, s" for phase in PHASES]
    header += ["imbalance", "bytes received", "bytes sent", "peak memory, MB", "rounds"]
    said = [
        "Seconds are medians over the rounds but the first. Imbalance: the busiest rank's seconds over the "
        "mean. Memory: the largest rank's. A server is one rank more.",
        caption,
    ]
    return Section(TITLES[axis], Table(header, rows, "r" * len(header)), said, picture)


def predicted(base: Measured, client_ranks: int, fits: Mapping[str, Fit]) -> float:
    """Seconds of a round on so many client ranks, by the model.

    What `base` trains and evaluates is shared out, training in whole clients; what the server does and the
    checkpoint stay; messages follow the fits.
    """
    shared = math.ceil(base.point.cohort / client_ranks) / math.ceil(
        base.point.cohort / base.point.client_ranks
    )
    train = sum(base.seconds.get(phase, 0.0) for phase in ("train", "prototypes", "client_state")) * shared
    evaluate = base.seconds.get("evaluate", 0.0) * base.point.client_ranks / client_ranks
    fixed = sum(base.seconds.get(phase, 0.0) for phase in ("server", "checkpoint"))
    ranks = client_ranks + 1
    messages = fits["broadcast"].seconds(ranks, base.broadcast_bytes)
    messages += fits["reduce"].seconds(ranks, base.reduce_bytes)
    return train + evaluate + fixed + messages


def model_section(strong: Sequence[Measured], fits: Mapping[str, Fit], caption: str, picture: str) -> Section:
    """The fit, how wrong it is on what it has not seen, and what it says to 1,024 client ranks."""
    base = strong[0]
    by_ranks = {one.point.client_ranks: one.round_seconds for one in strong}
    rows = []
    for c in sorted({*PREDICTED, *by_ranks}):
        seen = by_ranks.get(c)
        guess = predicted(base, c, fits)
        off = NONE if seen is None or c == base.point.client_ranks else f"{100 * (guess / seen - 1):+.0f}"
        cells = [str(c), f"{guess:.4f}", NONE if seen is None else f"{seen:.4f}", off.replace("-", "−")]
        rows.append(cells)
    said = [
        f"{name}: α = {1e6 * fit.alpha:.1f} µs per step, β = {1e9 * fit.beta * 2**20 / 1e6:.3f} ms per MiB; "
        f"mean error on sizes that the fit has not seen {100 * fit.error:.0f} %."
        for name, fit in fits.items()
    ]
    said += [
        "A PREDICTION from these costs and the round on the fewest client ranks: no such machine was "
        f"measured. Of more client ranks than the {base.point.cohort} clients of a round the rest is idle.",
        caption,
    ]
    header = ["client ranks", "predicted s per round", "measured", "off by, %"]
    return Section("Predicted round time", Table(header, rows, "rrrr"), said, picture)


def plot_scaling(axis: str, found: Sequence[Measured], out: Path) -> Path:
    """Seconds of a round by phase, and beside them speed-up (strong), efficiency (weak), or nothing."""
    figure = new_figure(figsize=(9 if axis != "clients" else 7, 4), layout="constrained")
    axes = figure.subplots(1, 1 if axis == "clients" else 2, squeeze=False)[0]
    names = [
        str(one.point.client_ranks) if axis != "clients" else f"{one.point.clients}\n{one.point.cohort}"
        for one in found
    ]
    bottom = [0.0] * len(found)
    hatches = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
    greys = ("0.35", "0.75", "0.9", "0.55", "0.8", "0.65", "0.95", "0.5")
    for phase, hatch, grey in zip(PHASES, hatches, greys, strict=True):
        heights = [one.seconds.get(phase, 0.0) for one in found]
        if max(heights) > 0.005 * max(one.round_seconds for one in found):
            axes[0].bar(
                names, heights, bottom=bottom, label=phase, color=grey, hatch=hatch, edgecolor="k", lw=0.5
            )
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes[0].set_xlabel("client ranks" if axis != "clients" else "clients, and below them the cohort")
    axes[0].set_ylabel("seconds of a round")
    axes[0].legend(fontsize=8)
    if axis != "clients":
        base, x = found[0], [one.point.client_ranks for one in found]
        ratio = [base.round_seconds / one.round_seconds for one in found]
        ideal = [c / base.point.client_ranks for c in x] if axis == "strong" else [100.0] * len(x)
        y = ratio if axis == "strong" else [100 * r for r in ratio]
        axes[1].plot(x, ideal, "--", color="0.4", label="ideal")
        axes[1].plot(x, y, "o-", color="#0072B2", label="measured")
        axes[1].set_xscale("log", base=2)
        axes[1].set_xticks(x, list(map(str, x)))
        axes[1].set_xlabel("client ranks")
        axes[1].set_ylabel("speed-up" if axis == "strong" else "efficiency (%)")
        axes[1].set_ylim(bottom=0)
        axes[1].grid(alpha=0.3)
        axes[1].legend(fontsize=8)
    return save_figure(figure, out)


def plot_model(strong: Sequence[Measured], fits: Mapping[str, Fit], out: Path) -> Path:
    """The predicted seconds of a round to 1,024 client ranks, with the measured points on it."""
    figure = new_figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        PREDICTED, [predicted(strong[0], c, fits) for c in PREDICTED], "--", color="0.4", label="predicted"
    )
    x = [one.point.client_ranks for one in strong]
    axes.plot(x, [one.round_seconds for one in strong], "o", color="#D55E00", label="measured")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(PREDICTED, list(map(str, PREDICTED)))
    axes.set_xlabel("client ranks")
    axes.set_ylabel("seconds of a round")
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, out)
