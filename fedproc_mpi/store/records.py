"""What a run leaves behind: the run directory, metrics, the summary, progress. On rank 0."""

import atexit
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import FIELD_DEFAULTS, Config, flag, read_json
from fedproc_mpi.errors import UserError
from fedproc_mpi.placement.devices import Placement, remarks
from fedproc_mpi.shards import Shards
from fedproc_mpi.store.checkpoint import NAME, PREVIOUS

CONFIG, METRICS, SUMMARY, MODEL = "config.json", "metrics.jsonl", "summary.json", "model.pt"
TOP = Path("runs")


def open_run_dir(config: Config, shards: Shards, environment: Mapping[str, Any]) -> tuple[Path, bool]:
    """The directory of this run, made if need be: (path, whether it holds the run already finished).

    A new one without --resume; with it, --run-dir or the newest unfinished run of the same config.
    Raises UserError when the directory holds another run, or cannot be written.
    """
    fingerprint = shards.fingerprint
    if config.run_dir:
        path = Path(config.run_dir)
        if (path / CONFIG).exists():
            if not config.resume:
                state = "a finished run" if is_finished(path) else "an unfinished run"
                raise UserError(f"{path} already holds {state}; add --resume to go on, or choose another")
            if differing := differences(path, config, fingerprint):
                raise UserError(f"{path}: --resume with a config that differs: {differing}")
            finished = is_finished(path)
            return (path if finished else _taken_up(path, config, environment)), finished
        if others := [name for name in (SUMMARY, NAME, PREVIOUS, METRICS) if (path / name).exists()]:
            raise UserError(f"{path} holds {', '.join(others)} of a run, but no {CONFIG}: choose another")
    else:
        found = _newest_unfinished(config, fingerprint) if config.resume else None
        if found:
            return _taken_up(found, config, environment), False
        path = None
    header = dataclasses.asdict(shards.header) | {"fingerprint": fingerprint}
    kept = {**config.flat(), "run_dir": "", "resume": False, "shards_copy": ""}
    kept |= {"data": header, "files": own_files(config), "environment": environment}
    try:
        if path is None:
            path = _new_directory(config)
        path.mkdir(parents=True, exist_ok=True)
        _write_json(path / CONFIG, kept)
    except OSError as error:
        raise UserError(f"{path or TOP}: cannot write there: {error.strerror}") from error
    return path, False


def is_finished(run_dir: Path) -> bool:
    """Whether all that a run leaves is there."""
    return (run_dir / SUMMARY).exists() and (run_dir / MODEL).exists()


def _taken_up(run_dir: Path, config: Config, environment: Mapping[str, Any]) -> Path:
    """The run to go on with; its config.json tells where it now runs, and where it ran before."""
    kept = read_json(run_dir / CONFIG)
    before = kept.get("environment", {})
    earlier = before.pop("earlier", [])
    if before != json.loads(json.dumps(environment)):
        earlier = [*earlier, before]
    now = {**environment, "earlier": earlier} if earlier else environment
    _write_json(run_dir / CONFIG, {**kept, "on_diverged": config.on_diverged, "environment": now})
    return run_dir


def _new_directory(config: Config) -> Path:
    """Made here, so that of two runs that start in the same second each gets its own."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(config.algorithm).stem}-{Path(config.shards).stem}"
    for i in itertools.count():
        path = TOP / (f"{stem}-{i}" if i else stem)
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError


def _newest_unfinished(config: Config, fingerprint: str) -> Path | None:
    unfinished = [p.parent for p in TOP.glob(f"*/{CONFIG}") if not is_finished(p.parent)]
    unfinished.sort(key=lambda p: ((p / CONFIG).stat().st_mtime, p.name), reverse=True)
    differing = {path: differences(path, config, fingerprint) for path in unfinished}
    same = [path for path, difference in differing.items() if not difference]
    if unfinished and not same:
        newest = unfinished[0]
        raise UserError(f"--resume: no unfinished run of this config; {newest} differs: {differing[newest]}")
    return same[0] if same else None


def differences(run_dir: Path, config: Config, fingerprint: str) -> str:
    """The result fields in which a run's config differs, in words; '' where there is none.

    A run records the device that its ranks found; where they have not looked yet, `auto` differs from none.
    As long as --on-diverged stop has not stopped a run, `exclude` would have given the same.
    """
    old = {**FIELD_DEFAULTS, **read_json(run_dir / CONFIG)}  # a field may be younger than the run
    words = [
        f"{flag(key)} was {old.get(key)!r}, now {value!r}"
        for key, value in config.result_fields().items()
        if old.get(key) != value
        and not (key == "device" and "auto" in (old.get(key), value))
        and not (key == "on_diverged" and (old.get(key), value) == ("stop", "exclude"))
    ]
    if old.get("data", {}).get("fingerprint") != fingerprint:
        words.append("the shards' contents changed")
    before = old.get("files", {})
    words += [
        f"{name} has changed" for name, sha in own_files(config).items() if before.get(name, sha) != sha
    ]
    return "; ".join(words)


def own_files(config: Config) -> dict[str, str]:
    """SHA-256 of the user's own files on which the result depends as well: algorithm, models, --init."""
    found = {}
    for key, value in config.result_fields().items():
        for word in value.split(",") if isinstance(value, str) else ():
            path = Path(word) if word.endswith(".py") or key == "init" else _module_file(word)
            if path is not None and path.is_file():
                found[word] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _module_file(word: str) -> Path | None:
    """The file of `module:Class`; None for other words."""
    module, colon, _ = word.partition(":")
    try:
        spec = importlib.util.find_spec(module) if colon else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def show_start(config: Config, comm: Comm, placements: Sequence[Placement]) -> None:
    """What runs where: one line a rank, and what to know of it."""
    told = [f"{config.algorithm}, {comm.size} rank(s) over {comm.name}"]
    told += [placement.line() for placement in placements]
    told += remarks(placements, comm.client_ranks)
    print("\n".join(f"fedproc_mpi: {line}" for line in told), flush=True)


def environment(comm_name: str, placements: Sequence[Placement]) -> dict[str, Any]:
    """Versions of what can change the last bits, and how the run was started."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        package = version("fedproc_mpi")
    except PackageNotFoundError:
        package = "not installed"
    found: dict[str, Any] = {
        "fedproc_mpi": package,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if "mpi4py.MPI" in sys.modules:
        mpi = sys.modules["mpi4py.MPI"]
        found["mpi4py"] = version("mpi4py")
        found["mpi"] = mpi.Get_library_version().split("\n")[0].split(",")[0].strip("\0 ")
    cpu = torch.backends.cpu.get_cpu_capability()
    found |= {"cpu": f"{platform.machine()} {cpu}", "transport": comm_name, "ranks": len(placements)}
    return {**found, "placements": [dataclasses.asdict(placement) for placement in placements]}


class Recorder:
    """Writes a line a round to metrics.jsonl, shows progress, keeps the time of each phase."""

    def __init__(self, run_dir: Path, config: Config, first_round: int) -> None:
        self.run_dir, self._config = run_dir, config
        self.lines = self._keep_rounds_before(first_round)
        self._file = open(run_dir / METRICS, "a")  # noqa: SIM115 - lives as long as the run
        self._first, self._started = first_round, time.perf_counter()
        self._bar = _progress_bar(config.rounds, first_round)

    def _keep_rounds_before(self, first_round: int) -> list[dict[str, Any]]:
        """A kill can come between a line and its checkpoint: such lines are redone, so they go.

        Lines that are lost are told. UserError where the last round's is and no round is left to do.
        """
        path = self.run_dir / METRICS
        by_round = {line["round"]: line for line in read_metrics(self.run_dir)} if first_round else {}
        lines = [by_round[t] for t in range(first_round) if t in by_round]
        lost = [t for t in range(first_round) if t not in by_round]
        if first_round == self._config.rounds and first_round - 1 in lost:
            raise UserError(
                f"{path} has lost the last round, whose accuracy is the run's: move {self.run_dir / NAME} "
                "away, and --resume repeats it"
            )
        if lost:
            print(
                f"fedproc_mpi: {path} has lost {len(lost)} rounds, {lost[0]} the first; they stay out of it"
            )
        _replace_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        return lines

    def record(self, line: dict[str, Any]) -> None:
        """One round's line, on disk before this returns."""
        self.lines.append(line)
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.run_dir / METRICS}: {error.strerror}") from error
        self._bar(line)

    def summarise(self, **facts: Any) -> dict[str, Any]:
        """Write summary.json; returns it."""
        seconds: dict[str, float] = {}
        for line in self.lines:
            for phase, value in line["seconds"].items():
                seconds[phase] = seconds.get(phase, 0.0) + value
        # Personal models are those of the round's cohort, at the end all: only like is compared with like.
        of = self.lines[-1].get("clients_evaluated")
        told = [line for line in self.lines if line.get("accuracy") is not None]
        accuracies = [line["accuracy"] for line in told if line.get("clients_evaluated") == of]
        summary = {
            "algorithm": self._config.algorithm,
            "rounds": self._config.rounds,
            "final_accuracy": accuracies[-1],
            "best_accuracy": max(accuracies),
            **{
                k: v
                for k, v in self.lines[-1].items()
                if ("accuracy" in k or k == "clients_evaluated") and k != "accuracy"
            },
            **facts,
            "total_seconds": round(sum(line["round_seconds"] for line in self.lines), 3),
            "seconds": {phase: round(value, 3) for phase, value in seconds.items()},
            "resumed_at_round": self._first or None,
        }
        _write_json(self.run_dir / SUMMARY, summary)
        return summary


def _progress_bar(rounds: int, first_round: int) -> Any:
    """A function that shows a round's line: a bar on a terminal, plain lines elsewhere."""

    def text(line: Mapping[str, Any]) -> str:
        accuracy = line.get("accuracy")
        shown = "" if accuracy is None else f"  accuracy {100 * accuracy:5.2f} %"
        seconds = f"{line['round_seconds']:.2f} s"
        return f"round {line['round'] + 1}/{rounds}{shown}  loss {line['loss']:.4f}  {seconds}"

    if not sys.stderr.isatty():
        return lambda line: print(text(line), flush=True)
    from rich.progress import Progress, TimeRemainingColumn

    progress = Progress(*Progress.get_default_columns()[:3], TimeRemainingColumn(), transient=True)
    task = progress.add_task(f"round {first_round}/{rounds}", total=rounds, completed=first_round)
    progress.start()
    atexit.register(progress.stop)  # however the run ends, the terminal gets its cursor back

    def show(line: Mapping[str, Any]) -> None:
        progress.update(task, completed=line["round"] + 1, description=text(line))
        if line["round"] + 1 == rounds:
            progress.stop()

    return show


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    _replace_text(path, json.dumps(value, indent=1) + "\n")


def _replace_text(path: Path, text: str) -> None:
    """The file is the old text or the new one, never half."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read_finished(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the rounds' lines of a finished run. UserError where the summary is damaged."""
    summary = read_json(run_dir / SUMMARY)
    if "model_sha256" not in summary:
        raise UserError(f"{run_dir / SUMMARY} is no run's summary: delete it, and --resume makes it again")
    return summary, read_metrics(run_dir)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The rounds' lines of a run, without any that are damaged. UserError where the file cannot be read."""
    path, lines = run_dir / METRICS, []
    try:
        texts = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    for text in texts:
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and {"round", "seconds", "round_seconds"} <= set(line):
                lines.append(line)
    return lines


class Clock:
    """Seconds by phase of one round, as rank 0 sees them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """The time since the last mark went into `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds from the start to the last mark."""
        return self._last - self._started


def round_line(
    t: int,
    found: Mapping[str, float] | None,
    metrics: Mapping[str, Any],
    cohort: list[int],
    reports: list[dict[str, Any]],
    clock: Clock,
) -> dict[str, Any]:
    """A line of metrics.jsonl; found: what the evaluation gave, None where there was none.

    `prototypes` and `client_state` are the slowest rank's parts of the time that clients worked.
    """
    slowest = max(reports, key=lambda report: sum(report["seconds"].values()))["seconds"]
    worked = clock.seconds["train"]
    parts = {phase: min(slowest[phase], worked) for phase in ("prototypes", "client_state")}
    seconds = {**clock.seconds, "train": max(0.0, worked - sum(parts.values())), **parts}
    return {
        "round": t,
        **(found or {"accuracy": None}),
        **metrics,
        "cohort": cohort,
        "round_seconds": round(clock.total, 4),
        "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
    }
