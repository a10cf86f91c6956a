"""Pictures of accuracy: over the rounds, and by site. They can be read in grey as well."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedproc_mpi.config import read_json
from fedproc_mpi.figure import new_figure, plain, save_figure, shortened
from fedproc_mpi.store.files import CONFIG
from fedproc_mpi.store.metrics import read_metrics

# Okabe and Ito's colours without the yellow, which is pale on white. The three lists are of lengths without
# a common factor, so that no two of the first 252 curves look the same.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
MARKS = 25  # at most so many on a curve
LABEL = 76  # characters in a line of the legend
SITE = 36  # characters of a site's name
NAMED_SITES = 20  # up to so many have a row of their own

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Curve:
    """Accuracy by round, in 0…1: of each run of a group. values_RN: runs by rounds.

    rounds: from 1, or what else stands on the x axis.
    """

    label: str
    rounds: Sequence[float]
    values_RN: Sequence[Sequence[float]]
    validation: bool = False


@dataclass(frozen=True)
class Sites:
    """Accuracy of the sites of one data set, in 0…1: by group's label, then by site; not all have a value."""

    data: str
    names: Sequence[str]
    by_group: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def accuracy_curve(label: str, runs: Sequence[Lines]) -> Curve | None:
    """The curve of a group from the lines of its runs, over the rounds that all of them evaluated.

    Runs on data with a validation set have no test accuracy by round; theirs is the validation accuracy.
    None where the runs have no such round in common.
    """
    for key in ("accuracy", "val_accuracy"):
        found = [{line["round"] + 1: line[key] for line in run if line.get(key) is not None} for run in runs]
        if rounds := sorted(set.intersection(*map(set, found))):
            # The test set is used once then, at the end: a single value is no curve.
            if key == "accuracy" and len(rounds) == 1 and any("val_accuracy" in line for line in runs[0]):
                continue
            values = [[float(of_run[t]) for t in rounds] for of_run in found]
            return Curve(label, rounds, values, key == "val_accuracy")
    return None


def plot_accuracy(run_dirs: Sequence[Path], out: Path) -> Path:
    """Draw the accuracy of each run over its rounds as a PNG; returns its path."""
    curves = []
    for run_dir in run_dirs:
        config = read_json(run_dir / CONFIG)
        label = f"{Path(config['algorithm']).stem[:40]} on {Path(config['shards']).stem[:40]}"
        curves.append(accuracy_curve(label, [read_metrics(run_dir)]))
    return plot_curves([curve for curve in curves if curve is not None], out)


def plot_curves(
    curves: Sequence[Curve], out: Path, x: str = "communication round", y: str = "", scale: float = 100.0
) -> Path:
    """Draw a PNG: the mean of each group's runs, in a band from lowest to highest. Returns its path.

    x, y: names of the axes; without y it is accuracy in %. scale: what values are multiplied with.
    """
    labels = [_wrapped(curve.label) for curve in curves]
    columns, legend_height = _legend_size(labels)
    figure = new_figure(figsize=(7, 4.2 + legend_height), layout="constrained")
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for i, (curve, label) in enumerate(zip(curves, labels, strict=True)):
        values = [[scale * v for v in of_round] for of_round in zip(*curve.values_RN, strict=True)]
        step = -(-len(curve.rounds) // MARKS)
        # Marks of different curves at different rounds, so that they cover each other less.
        mean = list(map(fmean, values))
        axes.plot(curve.rounds, mean, **_style(i), markersize=5, markevery=(i % step, step), label=label)
        if len(curve.values_RN) > 1:
            low, high = list(map(min, values)), list(map(max, values))
            axes.fill_between(curve.rounds, low, high, color=COLOURS[i % len(COLOURS)], alpha=0.15, lw=0)
    kinds = {curve.validation for curve in curves}
    kind = "" if len(kinds) > 1 else "validation " if True in kinds else "test "
    axes.set_xlabel(x)
    axes.set_ylabel(y or f"{kind}accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    _legend(figure, axes, columns)
    return save_figure(figure, out)


def plot_sites(panels: Sequence[Sites], out: Path) -> Path:
    """Draw a panel per data set as a PNG, a dot per site and group; returns its path.

    Up to 20 sites have a row each, with a dot per group. Of more, a group has a row, with a dot per site.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.by_group))
    wrapped = {label: _wrapped(label) for label in labels}
    columns, legend_height = _legend_size(list(wrapped.values()))
    rows = [len(p.names) if len(p.names) <= NAMED_SITES else len(p.by_group) for p in panels]
    size = 0.34
    heights = [1.0 + size * max(n, 3) for n in rows]
    figure = new_figure(figsize=(7, sum(heights) + legend_height), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, axes in zip(panels, all_axes, strict=True):
        by_site = len(panel.names) <= NAMED_SITES
        for place, (label, accuracy) in enumerate(panel.by_group.items()):
            style = _style(labels.index(label)) | {"linestyle": "none"}
            names = [name for name in panel.names if name in accuracy]
            # Groups side by side within a site's row, sites side by side within a group's.
            y = [
                panel.names.index(name) + _aside(place, len(panel.by_group))
                if by_site
                else place + _aside(panel.names.index(name), len(panel.names))
                for name in names
            ]
            x = [100 * accuracy[name] for name in names]
            axes.plot(x, y, **style, markersize=6 if by_site else 4, alpha=0.8, label=wrapped[label])
        ticks = shortened(panel.names, SITE) if by_site else [""] * len(panel.by_group)
        axes.set_yticks(range(len(ticks)), ticks)
        axes.set_ylim(len(ticks) - 0.5, -0.5)
        for between in range(1, len(ticks)):
            axes.axhline(between - 0.5, color="0.8", lw=0.6)
        dots = "" if by_site else f", {len(panel.names)} sites"
        axes.set_xlabel(f"accuracy on own test samples (%){dots}")
        axes.grid(alpha=0.3, axis="x")
        if len(panels) > 1:
            axes.set_title(plain(panel.data))
    _legend(figure, all_axes[0], columns, all_axes)
    return save_figure(figure, out)


def plot_boxes(values: Mapping[str, Sequence[float]], out: Path, x: str) -> Path:
    """Draw a PNG: a row per label, with a box over its values and whiskers to the last of them."""
    figure = new_figure(figsize=(7, 1.2 + 0.42 * len(values)), layout="constrained")
    axes = figure.subplots()
    places = range(len(values), 0, -1)
    axes.boxplot(list(values.values()), positions=list(places), orientation="horizontal", whis=(0, 100))
    axes.set_yticks(list(places), shortened(list(values), SITE + 10))
    axes.set_xlabel(x)
    axes.grid(alpha=0.3, axis="x")
    return save_figure(figure, out)


def _style(i: int) -> dict[str, Any]:
    """How the i-th group looks."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "linestyle": LINES[i % len(LINES)],
        "marker": MARKERS[i % len(MARKERS)],
    }


def _wrapped(label: str) -> str:
    """A group's label for the legend; matplotlib leaves out those that begin with _."""
    return textwrap.fill(plain(label if label[:1] != "_" else f" {label}"), LABEL, drop_whitespace=False)


def _aside(place: int, count: int) -> float:
    """Where in a row of height 1 the place-th of `count` dots lies, from its middle."""
    return 0.0 if count == 1 else 0.6 * (place / (count - 1) - 0.5)


def _legend_size(labels: Sequence[str]) -> tuple[int, float]:
    """Columns that fit under the axes, and the height in inches."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    columns = max(1, min(4, 84 // (longest + 8), len(labels)))
    lines = max((label.count("\n") + 1 for label in labels), default=1)
    return columns, 0.22 * lines * -(-len(labels) // columns) + 0.1


def _legend(figure: Any, axes: Any, columns: int, more: Sequence[Any] = ()) -> None:
    """Under the axes, where it hides nothing; each label once."""
    found: dict[str, Any] = {}
    for one in (axes, *more):
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found, loc="outside lower center", ncols=columns, handlelength=3.5)
