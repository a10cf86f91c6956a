"""Finished runs read from their directories, and sorted into groups that differ by their seeds alone."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproc_mpi.config import FIELDS
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag
from fedproc_mpi.store.files import CONFIG, METRICS, SUMMARY
from fedproc_mpi.store.metrics import read_metrics, read_summary
from fedproc_mpi.store.model import read_config
from fedproc_mpi.store.rundir import chooses_by_validation

CONTENTS = "contents of "  # before the name of a file of one's own, among a run's settings


@dataclass(frozen=True)
class FinishedRun:
    """What one finished run left.

    settings: all that the result depends on but algorithm, seed and data, by name. data: the shards' header.
    fingerprint: of the data.
    lines: the rounds' lines of metrics.jsonl.
    """

    path: Path
    algorithm: str
    seed: int
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    shards: str
    fingerprint: str
    summary: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    def value(self, key: str) -> float | None:
        """A number of summary.json, None where it has none."""
        value = self.summary.get(key)
        return value if is_number(value) else None

    @property
    def num_clients(self) -> int:
        """m, as far as the lines tell: a client that was never drawn is missing."""
        return max((max(line.get("cohort") or [-1]) for line in self.lines), default=-1) + 1

    @property
    def client_accuracy(self) -> dict[str, float]:
        """Client's name → accuracy on its own test rows; without those that have none; empty in old runs."""
        found = self.summary.get("client_accuracy")
        items = found.items() if isinstance(found, dict) else ()
        return {str(name): value for name, value in items if is_number(value)}


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seeds alone, each seed once, in the seeds' order.

    label: the algorithm, and the settings that tell this group from the others. data: the name of the data.
    """

    label: str
    data: str
    runs: Sequence[FinishedRun]

    @property
    def algorithm(self) -> str:
        """Its short name: a file of one's own without folder and ending."""
        return Path(self.runs[0].algorithm).stem

    @property
    def fingerprint(self) -> str:
        """Of the data of all its runs."""
        return self.runs[0].fingerprint

    def values(self, key: str) -> list[float]:
        """A number of summary.json, of those runs that have it."""
        return [value for run in self.runs if (value := run.value(key)) is not None]

    def by_seed(self, key: str) -> dict[int, float]:
        """The same by seed."""
        return {run.seed: value for run in self.runs if (value := run.value(key)) is not None}


def is_number(value: object) -> bool:
    """Whether a value of a JSON file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_runs(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs among run directories, and a sentence for each one that is left out.

    Left out are unfinished runs, those with a damaged file, and a directory that is named again. Raises
    UserError for a directory that holds no run, and where no finished run is left.
    """
    runs: list[FinishedRun] = []
    left_out: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no run directory: it has no {CONFIG}")
        if path.resolve() in seen:
            left_out.append(f"{path} is named twice, and counts once")
            continue
        seen.add(path.resolve())
        # A summary is the last that a run writes. Its models may have been deleted to save room.
        if not (path / SUMMARY).exists():
            left_out.append(f"{path} is left out: not finished")
            continue
        try:
            runs.append(_read(path))
        except UserError as error:
            left_out.append(f"{path} is left out: {error}")
    if not runs:
        raise UserError(f"no finished run among {len(paths)}: {left_out[0]}")
    return runs, left_out


def _read(path: Path) -> FinishedRun:
    config, record = read_config(path)
    summary = read_summary(path)
    if not is_number(summary.get("final_accuracy")):
        raise UserError(f"{path / SUMMARY} has no final_accuracy")
    data = record["data"]
    settings = config.result_fields()
    algorithm, seed = settings.pop("algorithm"), settings.pop("seed")
    files = record.get("files", {})
    settings |= {f"{CONTENTS}{name}": sha for name, sha in files.items()} if isinstance(files, dict) else {}
    if chooses_by_validation(record):  # which rounds are validated decides which one is the best
        settings["eval_every"] = config.eval_every
    lines = read_metrics(path)
    if len(lines) != summary.get("rounds", len(lines)):
        raise UserError(
            f"{path / METRICS} is damaged: {len(lines)} of {summary['rounds']} rounds can be read"
        )
    sha = data["fingerprint"]
    return FinishedRun(path, algorithm, seed, settings, data, config.shards, sha, summary, lines)


def group_runs(runs: Sequence[FinishedRun]) -> tuple[list[Group], list[str], list[str]]:
    """Groups in the order of their first runs; settings that most of them share; a sentence per repeated run.

    Runs of one group have the same algorithm, settings and data. A label names the settings in which groups
    differ; a value that more than half of them share is not named there, but in the second list. Of two runs
    of a group with the same seed the first counts: they are one experiment.
    """
    grouped: dict[Any, dict[int, FinishedRun]] = {}
    repeats = []
    for run in runs:
        settings = sorted((name, repr(value)) for name, value in run.settings.items())
        by_seed = grouped.setdefault((run.algorithm, run.fingerprint, *settings), {})
        first = by_seed.setdefault(run.seed, run)
        if first is not run:
            repeats.append(_repeats(run, first))
    firsts = [next(iter(by_seed.values())) for by_seed in grouped.values()]
    algorithms, data = _short_names(firsts), _data_names(firsts)
    flags, common = _differing(firsts)
    groups = []
    for first, named, by_seed in zip(firsts, flags, grouped.values(), strict=True):
        where = [f"--shards {data[first.fingerprint]}"] if len(data) > 1 else []
        label = " ".join([algorithms[first.algorithm], *named, *where])
        groups.append(Group(label, data[first.fingerprint], [by_seed[seed] for seed in sorted(by_seed)]))
    return groups, common, repeats


def _repeats(run: FinishedRun, first: FinishedRun) -> str:
    text = f"{run.path} repeats {first.path} (same settings, data and seed), and counts once"
    ours, theirs = (100 * one.summary["final_accuracy"] for one in (run, first))
    differing = f", though it ends at {ours:.2f} % and the first at {theirs:.2f} %" if ours != theirs else ""
    return text + differing


def _short_names(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Algorithm → its name without folder and ending, or as it is where two would be called the same."""
    stems = {run.algorithm: Path(run.algorithm).stem for run in runs}
    return {name: stem if list(stems.values()).count(stem) == 1 else name for name, stem in stems.items()}


def _data_names(runs: Sequence[FinishedRun]) -> dict[str, str]:
    """Fingerprint → the shards file's name, with the fingerprint's start where two have the same name."""
    stems: dict[str, str] = {}
    for run in runs:
        stems.setdefault(run.fingerprint, Path(run.shards).stem)
    twice = {stem for stem, count in Counter(stems.values()).items() if count > 1}
    return {sha: f"{stem} ({sha[:8]})" if stem in twice else stem for sha, stem in stems.items()}


def _differing(runs: Sequence[FinishedRun]) -> tuple[list[list[str]], list[str]]:
    """For each run its settings that others have otherwise, as flags; and the values most of them share.

    A setting of an algorithm is compared among the runs of that algorithm alone.
    """
    flags: list[list[str]] = [[] for _ in runs]
    common = []
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        of_all = name in FIELDS or (name.startswith(CONTENTS) and all(name in run.settings for run in runs))
        peers: dict[str, list[int]] = {}
        for i, run in enumerate(runs):
            peers.setdefault("" if of_all else run.algorithm, []).append(i)
        for algorithm, members in peers.items():
            shown = {i: _flag(name, runs[i].settings.get(name)) for i in members}
            if len(set(shown.values())) == 1:
                continue
            most, count = Counter(shown.values()).most_common(1)[0]
            usual = most if 2 * count > len(members) else None
            if usual:
                common.append(usual + (f" ({Path(algorithm).stem})" if algorithm else ""))
            for i in members:
                if shown[i] != usual:
                    flags[i].append(shown[i])
    return flags, common


def _flag(name: str, value: Any) -> str:
    """A setting as it is typed."""
    if name.startswith(CONTENTS):
        return f"({name} {'unknown' if value is None else value[:8]})"
    if isinstance(value, bool):
        return flag(name if value else f"no_{name}")
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    return f"{flag(name)} {'none' if value in (None, '') else value}"
