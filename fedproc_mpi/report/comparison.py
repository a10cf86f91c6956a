"""What finished runs say when they are laid side by side: tables, words and pictures.

`compare` shows it, and whatever reports on many runs can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np

from fedproc_mpi.report.curves import NAMED_SITES, Sites, accuracy_curve, plot_curves, plot_sites
from fedproc_mpi.report.paired import Difference, against_best, mean_std
from fedproc_mpi.report.runs import Group, group_runs, read_runs
from fedproc_mpi.report.tables import NONE, Section, Table
from fedproc_mpi.store.files import write_output

FINAL, BEST = "final_accuracy", "best_accuracy"
COLUMNS = {  # key of summary.json → the column's name
    FINAL: "final (test)",
    "balanced_accuracy": "balanced",
    "client_accuracy_mean": "mean of clients",
    "client_accuracy_worst_decile": "worst decile",
}
QUANTILES = {"lowest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "highest": 1.0}
SAME = 0.0005  # a site whose accuracy changes by less is told as unchanged: it would be shown as 0.0 points


@dataclass(frozen=True)
class Contest:
    """The groups on one data set: the best one by final accuracy, and its difference to each other one.

    differences: by place in `groups`; in 0…1. tests: how many the correction is for.
    """

    groups: Sequence[Group]
    best: int
    differences: dict[int, Difference]
    tests: int

    @property
    def is_won(self) -> bool:
        """Whether the best group is better than every other one, by the corrected tests."""
        found = self.differences.values()
        return bool(found) and all(d.holds and (d.mean or 0.0) > 0 for d in found)


@dataclass(frozen=True)
class Comparison:
    """All of it. shared, left_out: sentences of `group_runs` and `read_runs`."""

    groups: Sequence[Group]
    contests: Sequence[Contest]
    sites: Sequence[Sites]
    shared: Sequence[str] = ()
    left_out: Sequence[str] = field(default_factory=list)

    def sections(self, pictures: Sequence[str] = ()) -> list[Section]:
        """Tables and words; pictures: the files' names that there are, compare.png and sites.png."""
        found = [_accuracy_section(self, "compare.png" if "compare.png" in pictures else "")]
        found += [_contest_section(contest, len(self.contests) > 1) for contest in self.contests]
        for panel in self.sites:
            picture = "sites.png" if panel is self.sites[-1] and "sites.png" in pictures else ""
            groups = [group for group in self.groups if group.label in panel.by_group]
            found.append(_site_section(panel, groups, len(self.sites) > 1, picture))
        return found + ([Section("Left out", sentences=self.left_out)] if self.left_out else [])

    def save(self, folder: Path) -> list[Path]:
        """Write compare.md, compare.csv and compare.png, with sites also sites.csv and sites.png.

        Raises UserError or OSError where a file cannot be written. Returns the files.
        """
        folder.mkdir(parents=True, exist_ok=True)
        files, drawn = [folder / "compare.md", folder / "compare.csv"], []
        write_output(_results_csv(self), files[1])
        curves = [
            accuracy_curve(_curve_label(group), [run.lines for run in group.runs]) for group in self.groups
        ]
        if shown := [curve for curve in curves if curve is not None]:
            drawn.append(plot_curves(shown, folder / "compare.png"))
        if self.sites:
            files.append(folder / "sites.csv")
            write_output(_sites_csv(self), files[-1])
            drawn.append(plot_sites(self.sites, folder / "sites.png"))
        sections = self.sections([path.name for path in drawn])
        text = "\n\n".join(["# Comparison", *(section.markdown() for section in sections)])
        write_output(text + "\n", files[0])
        return files + drawn


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare the finished runs among run directories. UserError as `read_runs`."""
    runs, left_out = read_runs(paths)
    groups, shared, repeats = group_runs(runs)
    by_data: dict[str, list[Group]] = {}
    for group in groups:
        by_data.setdefault(group.fingerprint, []).append(group)
    contests = [_contest(of_data) for of_data in by_data.values()]
    sites = [panel for of_data in by_data.values() if (panel := _sites(of_data)).names]
    return Comparison(groups, contests, sites, shared, [*left_out, *repeats])


def _contest(groups: Sequence[Group]) -> Contest:
    best, differences, tests = against_best([group.by_seed(FINAL) for group in groups])
    return Contest(groups, best, differences, tests)


# ---- accuracy by group -----------------------------------------------------------------------------------


def _accuracy_section(comparison: Comparison, picture: str) -> Section:
    groups = comparison.groups
    columns = {key: name for key, name in COLUMNS.items() if any(group.values(key) for group in groups)}
    chosen_on = {run.summary.get("best_chosen_on", "test") for group in groups for run in group.runs}
    columns[BEST] = f"best, chosen on {' or '.join(sorted(chosen_on))}"
    rows = [
        [group.label, str(len(group.runs)), *(_mean_std(group.values(key)) for key in columns)]
        for group in groups
    ]
    winners = {contest.groups[contest.best].label for contest in comparison.contests if contest.is_won}
    bold = frozenset((i, 2) for i, group in enumerate(groups) if group.label in winners)
    table = Table(["", "runs", *columns.values()], rows, "lr" + "r" * len(columns), bold)
    sentences = [
        "Mean ± sample standard deviation over the runs of a row, which differ by their seeds alone."
    ]
    if comparison.shared:
        sentences.append(f"Where a row does not name it: {', '.join(comparison.shared)}.")
    if personal := [group.label for group in groups if "accuracy_std" in group.runs[0].summary]:
        sentences.append(
            f"No global model: {', '.join(personal)}. Final is the mean of the clients' models, each on the "
            "whole test set; the mean of clients has each on the client's own test samples."
        )
    if "test" in chosen_on:
        sentences.append("A best accuracy chosen on the test set is too good; do not quote it as a result.")
    if bold:
        sentences.append("Bold: better than every other row on the same data, by the tests below.")
    return Section("Accuracy, %", table, sentences, picture)


def _curve_label(group: Group) -> str:
    """What the curve shows where it is not the global model's accuracy."""
    if "accuracy_std" not in group.runs[0].summary:
        return group.label
    own = group.runs[0].summary.get("best_chosen_on") == "validation"
    return f"{group.label} (mean of clients{', each on its own samples' if own else ''})"


def _mean_std(values: Sequence[float]) -> str:
    if not values:
        return NONE
    mean, std = mean_std([100 * value for value in values])
    return f"{mean:.1f} ± {NONE if std is None else f'{std:.1f}'}"


# ---- the best group against each other one ---------------------------------------------------------------


def _contest_section(contest: Contest, name_data: bool) -> Section:
    best = contest.groups[contest.best]
    title = f"{best.label} against each other row" + (f", on {best.data}" if name_data else "")
    if not contest.differences:
        return Section(title, sentences=["Nothing else ran on this data: no test is possible."])
    rows = []
    for i, d in sorted(contest.differences.items()):
        interval = NONE if d.low is None or d.high is None else f"{_points(d.low)} to {_points(d.high)}"
        p = NONE if d.p_holm is None else "<0.001" if d.p_holm < 0.001 else f"{d.p_holm:.3f}"
        mean = NONE if d.mean is None else _points(d.mean, "+")
        words = _in_words(d, best, contest.groups[i])
        rows.append([contest.groups[i].label, str(d.n), mean, interval, p, words])
    table = Table(["", "pairs", "points", "95 % interval", "p (Holm)", "in words"], rows, "lrrrrl")
    sentences = []
    if contest.tests:
        sentences.append("Final test accuracy, paired t tests: a pair is two runs of the same seed and data.")
    if contest.tests > 1:
        sentences.append(
            f"p is Holm's, for all {contest.tests} pairs of rows: the best row is chosen after looking."
        )
    return Section(title, table, [*sentences, *_unpaired(contest)])


def _in_words(d: Difference, best: Group, other: Group) -> str:
    """What a difference means."""
    if d.n == 0:
        return "no seed in common: no test is possible"
    if d.n == 1:
        both = len(best.runs) == len(other.runs) == 1
        return f"one seed {'each' if both else 'in common'}: no test is possible"
    if d.low is None or d.high is None or d.mean is None:
        return f"the same difference for all {d.n} seeds: no test is possible"
    if not d.holds:
        alone = " after the correction" if d.low > 0 or d.high < 0 else ""
        return f"not told apart by {d.n} seeds{alone}"
    better, low, high = (best, d.low, d.high) if d.mean > 0 else (other, -d.high, -d.low)
    return f"{better.label} is {_points(low)} to {_points(high)} points better, 95 %"


def _points(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f}".replace("-", "−")


def _unpaired(contest: Contest) -> list[str]:
    """A sentence for each run of the best row or another whose seed the other side lacks."""
    best = contest.groups[contest.best]
    missing: dict[Path, tuple[int, list[str]]] = {}
    for i in contest.differences:
        other = contest.groups[i]
        for group, partner in ((best, other), (other, best)):
            seeds = {run.seed for run in partner.runs}
            for run in group.runs:
                if run.seed not in seeds:
                    missing.setdefault(run.path, (run.seed, []))[1].append(partner.label)
    return [
        f"{path} (seed {seed}) has no partner in: {', '.join(labels)}."
        for path, (seed, labels) in missing.items()
    ]


# ---- accuracy by site ------------------------------------------------------------------------------------


def _sites(groups: Sequence[Group]) -> Sites:
    """The sites of groups on one data set; none where no run has them."""
    by_run = [run.client_accuracy for group in groups for run in group.runs]
    names = dict.fromkeys(name for found in sorted(by_run, key=len, reverse=True) for name in found)
    by_group = {
        group.label: {
            name: fmean(values)
            for name in names
            if (values := [run.client_accuracy[name] for run in group.runs if name in run.client_accuracy])
        }
        for group in groups
    }
    return Sites(groups[0].data, list(names), {label: found for label, found in by_group.items() if found})


def _site_section(sites: Sites, groups: Sequence[Group], name_data: bool, picture: str) -> Section:
    columns = list(sites.by_group.values())
    if len(sites.names) <= NAMED_SITES:
        rows = [
            [name, *(f"{100 * of[name]:.1f}" if name in of else NONE for of in columns)]
            for name in sites.names
        ]
        first = "site"
    else:
        rows = [
            [name, *(f"{100 * float(np.quantile(list(of.values()), q)):.1f}" for of in columns)]
            for name, q in QUANTILES.items()
        ]
        first = f"of {len(sites.names)} sites"
    table = Table([first, *sites.by_group], rows, "l" + "r" * len(columns))
    title = "Accuracy by site, %" + (f", on {sites.data}" if name_data else "")
    mean = "Each site on its own test samples, the mean over the runs of a column."
    return Section(title, table, [mean, *_gains(sites, groups)], picture)


def _gains(sites: Sites, groups: Sequence[Group]) -> list[str]:
    """Which sites gain and which lose against training alone, for each group; [] without SOLO."""
    solo = next((group for group in groups if group.algorithm == "solo"), None)
    sentences = []
    for group in groups:
        if solo is None or group.algorithm == "solo":
            continue
        alone = {run.seed: run.client_accuracy for run in solo.runs}
        pairs = [(run.client_accuracy, alone[run.seed]) for run in group.runs if run.seed in alone]
        change = {}
        for name in sites.names:
            if both := [
                own[name] - by_itself[name] for own, by_itself in pairs if name in own and name in by_itself
            ]:
                change[name] = fmean(both)
        start = f"{group.label} against {solo.label}"
        if not change:
            sentences.append(f"{start}: no seed in common.")
            continue
        gain = {name: d for name, d in change.items() if d >= SAME}
        lose = {name: d for name, d in change.items() if d <= -SAME}
        counts = [_counted("gain", gain), _counted("lose", lose)]
        if same := len(change) - len(gain) - len(lose):
            counts.append(f"{same} as before")
        seeds = f"{len(pairs)} seed{'s' * (len(pairs) > 1)}"
        sentences.append(
            f"{start}: of {len(change)} sites {'; '.join(counts)} (points, mean of {seeds}, no test)."
        )
    return sentences


def _counted(verb: str, change: dict[str, float]) -> str:
    """`2 lose: West −1.2, North −0.4`, the largest change first; of more than 20 sites the first three."""
    if not change:
        return f"none {verb}"
    largest = sorted(change.items(), key=lambda item: -abs(item[1]))
    shown = largest if len(largest) <= NAMED_SITES else largest[:3]
    named = ", ".join(f"{name} {_points(d, '+')}" for name, d in shown)
    return f"{len(change)} {verb}: {named}" + (", …" if len(shown) < len(largest) else "")


# ---- files for other programs ----------------------------------------------------------------------------


def _results_csv(comparison: Comparison) -> str:
    """A row per group; accuracies and differences as in summary.json, in 0…1."""
    keys = [*COLUMNS, BEST]
    header = ["group", "algorithm", "data", "fingerprint", "seeds", "runs"]
    header += [f"{key}_{what}" for key in keys for what in ("mean", "std")]
    header += ["best_group", "pairs", "best_minus_this", "low_95", "high_95", "p_holm", "is_better_than_all"]
    rows = []
    for contest in comparison.contests:
        for i, group in enumerate(contest.groups):
            d = contest.differences.get(i, Difference(0))
            figures: list[float | None] = []
            for key in keys:
                figures += mean_std(group.values(key)) if group.values(key) else (None, None)
            seeds = " ".join(str(run.seed) for run in group.runs)
            row = [group.label, group.algorithm, group.data, group.fingerprint, seeds, str(len(group.runs))]
            row += [*map(_plain, figures), contest.groups[contest.best].label, str(d.n)]
            row += [*map(_plain, (d.mean, d.low, d.high, d.p_holm))]
            rows.append([*row, str(int(contest.is_won and i == contest.best))])
    return Table(header, rows, "l" * len(header)).csv()


def _sites_csv(comparison: Comparison) -> str:
    """A row per group and site, all sites however many."""
    header = ["data", "group", "site", "accuracy_mean"]
    rows = [
        [panel.data, label, name, _plain(accuracy)]
        for panel in comparison.sites
        for label, found in panel.by_group.items()
        for name, accuracy in found.items()
    ]
    return Table(header, rows, "lllr").csv()


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
