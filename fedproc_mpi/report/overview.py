"""What a report says of many runs beside `comparison`: published figures, cost, time, clients."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedproc_mpi.report.comparison import Comparison
from fedproc_mpi.report.curves import Curve, plot_boxes, plot_curves
from fedproc_mpi.report.published import EPOCHS, ROUND_TIMES, published
from fedproc_mpi.report.runs import FinishedRun, Group
from fedproc_mpi.report.tables import NONE, Section, Table
from fedproc_mpi.store.files import write_output

PHASES = ("train", "prototypes", "client_state", "reduce", "broadcast", "evaluate", "checkpoint")
STEP = 0.05  # targets are multiples of this
MIB = 2**20
Axis = Callable[[FinishedRun], list[float]]  # a run → its value on the x axis after each round


def sections(comparison: Comparison, folder: Path, target: float) -> list[Section]:
    """All sections of a report, with their pictures drawn into the folder.

    target: an accuracy in 0…1; 0: the highest multiple of 5 % that all groups of a data set reach.
    """
    pictures = [path.name for path in comparison.save(folder) if path.suffix == ".png"]
    found = comparison.sections(pictures)
    left_out = [section for section in found if section.title == "Left out"]
    found = [section for section in found if section not in left_out]
    groups = comparison.groups
    found[1:1] = [*_published_section(groups)]
    found += [_target_section(groups, target, folder), *_axes_sections(groups, folder)]
    found += [_time_section(groups), *_client_section(groups, folder), *_cosine_section(groups, folder)]
    for section in found:
        if section.table is not None:
            write_output(section.table.csv(), folder / f"{_file_name(section.title)}.csv")
    return found + left_out


def _file_name(title: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in title.lower())[:60].strip("_")


# ---- published figures -----------------------------------------------------------------------------------


def _published_section(groups: Sequence[Group]) -> list[Section]:
    rows = []
    for group in groups:
        run = group.runs[0]
        rounds, epochs = run.settings["rounds"], run.settings["local_epochs"]
        for figure in published(
            str(run.data.get("dataset")), run.num_clients, run.data.get("beta"), rounds, group.algorithm
        ):
            ours = 100 * fmean(group.values("final_accuracy"))
            own = f"T = {rounds}, E = {epochs}"
            alike = (rounds, epochs) == (figure.rounds, EPOCHS) or group.algorithm == "solo"
            length = "the same" if alike else f"{own}; published T = {figure.rounds}, E = {EPOCHS}"
            difference = f"{ours - figure.value:+.1f}".replace("-", "−")
            rows.append([group.label, str(len(group.runs)), f"{ours:.1f}", str(figure), difference, length])
    if not rows:
        return []
    said = [
        "[F] FedProc, arXiv 2109.12273; [M] MOON, arXiv 2103.16257; [S] FedFSA's runs of the same set-up.",
        "A difference says something only where the length is the same.",
    ]
    header = ["", "runs", "final accuracy", "published", "difference", "length"]
    return [Section("Beside published figures, %", Table(header, rows, "lrrrrl"), said)]


# ---- what an accuracy costs ------------------------------------------------------------------------------


def _target_section(groups: Sequence[Group], target: float, folder: Path) -> Section:
    """Rounds, local epochs, bytes and seconds to a target accuracy, by data set."""
    rows = []
    for data, of_data in _by_data(groups):
        aim = target or _common_target(of_data)
        for group in of_data:
            reached = [t for run in group.runs if (t := _reached(run, aim)) is not None]
            cells = [f"{len(reached)} of {len(group.runs)}"]
            for axis in AXES.values():
                values = [
                    x[t] for run in group.runs if (t := _reached(run, aim)) is not None and (x := axis(run))
                ]
                cells.append(_short(fmean(values)) if values else NONE)
            rows.append([group.label, data, f"{100 * aim:.0f}", *cells])
    header = ["", "data", "target, %", "reached by", *AXES]
    said = [
        "The first evaluated round with at least this accuracy (of validation, where the test set was kept "
        "back), mean over the runs that reach it.",
        "Seconds are of the machine that ran, with whatever ran beside it.",
    ]
    return Section("What an accuracy costs", Table(header, rows, "llr" + "r" * (1 + len(AXES))), said)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _by_data(groups: Sequence[Group]) -> list[tuple[str, list[Group]]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.fingerprint, []).append(group)
    return [(of_data[0].data, of_data) for of_data in found.values()]


def _common_target(groups: Sequence[Group]) -> float:
    highest = [max((a for _, a in _accuracies(run)), default=0.0) for group in groups for run in group.runs]
    return max(STEP, int(min(highest) / STEP + 1e-9) * STEP)


def _accuracies(run: FinishedRun) -> list[tuple[int, float]]:
    """(place of the line, accuracy) of the rounds that were evaluated."""
    for key in ("val_accuracy", "accuracy"):
        found = [(i, float(line[key])) for i, line in enumerate(run.lines) if line.get(key) is not None]
        if found:
            return found
    return []


def _reached(run: FinishedRun, aim: float) -> int | None:
    return next((i for i, accuracy in _accuracies(run) if accuracy >= aim), None)


def _rounds(run: FinishedRun) -> list[float]:
    return [float(line["round"] + 1) for line in run.lines]


def _epochs(run: FinishedRun) -> list[float]:
    return [float((line["round"] + 1) * run.settings["local_epochs"]) for line in run.lines]


def _seconds(run: FinishedRun) -> list[float]:
    return list(itertools.accumulate(float(line["round_seconds"]) for line in run.lines))


def _mebibytes(run: FinishedRun) -> list[float]:
    """What one client receives and sends so far; [] for runs of before it was recorded."""
    a_round = run.summary.get("broadcast_bytes"), run.summary.get("reduce_bytes")
    if None in a_round:
        return []
    return [(line["round"] + 1) * sum(map(float, a_round)) / MIB for line in run.lines]  # type: ignore[arg-type]


AXES: Mapping[str, Axis] = {
    "rounds": _rounds,
    "local epochs": _epochs,
    "MiB per rank": _mebibytes,
    "seconds": _seconds,
}


def _axes_sections(groups: Sequence[Group], folder: Path) -> list[Section]:
    """Accuracy over local epochs, bytes and seconds; over rounds it stands above."""
    found = []
    for name, axis in list(AXES.items())[1:]:
        curves = [curve for group in groups if (curve := _curve(group, axis)) is not None]
        if curves:
            picture = plot_curves(curves, folder / f"over_{_file_name(name)}.png", name)
            found.append(Section(f"Accuracy over {name}", picture=picture.name))
    return found


def _curve(group: Group, axis: Axis) -> Curve | None:
    """Over the rounds that all of a group's runs evaluated; x is the mean over its runs."""
    evaluated = [dict(_accuracies(run)) for run in group.runs]
    shared = sorted(set.intersection(*map(set, evaluated)))
    x = [axis(run) for run in group.runs]
    if not shared or not all(x):
        return None
    mean_x = [fmean(of_run[i] for of_run in x) for i in shared]
    validation = "val_accuracy" in group.runs[0].lines[-1]
    return Curve(group.label, mean_x, [[of_run[i] for i in shared] for of_run in evaluated], validation)


# ---- time, clients, prototypes ---------------------------------------------------------------------------


def _time_section(groups: Sequence[Group]) -> Section:
    rows = []
    for _, of_data in _by_data(groups):
        typical = {group.label: _typical(group) for group in of_data}
        base = next((typical[g.label] for g in of_data if g.algorithm == "fedavg"), None)
        for group in of_data:
            lines = [line["seconds"] for run in group.runs for line in run.lines]
            total = sum(sum(seconds.values()) for seconds in lines)
            by_phase = [sum(seconds.get(phase, 0.0) for seconds in lines) for phase in PHASES]
            shares = [f"{100 * seconds / total:.1f}" if total else NONE for seconds in by_phase]
            ratio = NONE if base is None else f"{typical[group.label] / base:.2f}"
            dataset = str(group.runs[0].data.get("dataset"))
            paper = ROUND_TIMES.get(dataset, {}).get(group.algorithm)
            against = NONE if paper is None else f"{paper:.2f}"
            rows.append([group.label, f"{typical[group.label]:.2f}", ratio, against, *shares])
    header = ["", "s per round (median)", "to FedAvg's", "in [F] Tab. 5", *(f"{p}, %" for p in PHASES)]
    said = [
        "Seconds are of the machine that ran, with whatever ran beside it: compare rows that ran alike.",
    ]
    return Section("Time by phase", Table(header, rows, "l" + "r" * (len(header) - 1)), said)


def _typical(group: Group) -> float:
    return median(float(line["round_seconds"]) for run in group.runs for line in run.lines)


def _client_section(groups: Sequence[Group], folder: Path) -> list[Section]:
    """How the clients' accuracies spread, each on its own test samples."""
    found = {
        group.label: [100 * v for run in group.runs for v in run.client_accuracy.values()] for group in groups
    }
    found = {label: values for label, values in found.items() if values}
    if not found:
        return []
    picture = plot_boxes(found, folder / "clients.png", "accuracy of the clients on own test samples (%)")
    said = ["Box: half of the clients; line: median; whiskers: all. Clients of all runs of a row together."]
    return [Section("Clients", sentences=said, picture=picture.name)]


def _cosine_section(groups: Sequence[Group], folder: Path) -> list[Section]:
    """How far apart the prototypes are, over the rounds."""
    curves = []
    for group in groups:
        found: list[dict[int, Any]] = [
            {line["round"] + 1: line["prototype_cosine"] for line in run.lines if "prototype_cosine" in line}
            for run in group.runs
        ]
        if shared := sorted(set.intersection(*map(set, found))):
            curves.append(Curve(group.label, shared, [[of_run[t] for t in shared] for of_run in found]))
    if not curves:
        return []
    picture = plot_curves(curves, folder / "cosines.png", "rounds", "mean cosine between prototypes", 1.0)
    said = ["Mean over the pairs of classes that have a prototype; −1/(K − 1) is the least that K can have."]
    return [Section("Prototypes", sentences=said, picture=picture.name)]
