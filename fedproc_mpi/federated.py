"""The round loop (FedProc Algorithm 1), and a run from config to summary."""

import dataclasses
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.config import Config
from fedproc_mpi.errors import FedprocError, Stopped, TrainingFailed
from fedproc_mpi.learn.client import Round
from fedproc_mpi.learn.cohort import Speeds, assign, sample_cohort
from fedproc_mpi.learn.sums import Diverged, WeightedSums
from fedproc_mpi.parts import Parts
from fedproc_mpi.store import checkpoint
from fedproc_mpi.store.client_state import verify_states
from fedproc_mpi.store.records import (
    Clock,
    Recorder,
    environment,
    open_run_dir,
    read_finished,
    round_line,
    show_start,
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What `run` returns on rank 0: the run directory, the summary, the rounds' lines."""

    run_dir: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


class Federation(Parts):
    """One rank's part of a run, and the rounds."""

    def __init__(self, config: Config, comm: Comm) -> None:
        """Collective. Raises UserError, agreed, when anything is wrong on any rank."""
        super().__init__(config, comm)
        self._speeds = Speeds(comm.client_ranks)
        self._stop_signal = 0
        self.kept_versions: list[list[int]] = []  # of the clients' states, in the kept checkpoints

    def start(self, first_round: int) -> None:
        """w⁰ and c⁰ on every rank (Alg. 1 l.3), or the checkpoint's state. Collective."""
        self.comm.broadcast(self.state.buffer)
        if first_round == 0:
            self._init()

    def _init(self) -> None:
        try:
            self.algorithm.init(self.state, self.trainer, self.clients, self.share_of_all(), self.comm)
        except Diverged as error:
            raise TrainingFailed(f"before the first round: {error}") from error

    def rounds(self, first_round: int, recorder: Recorder | None) -> None:
        """Rounds first_round … T-1. Collective. Raises TrainingFailed or Stopped, agreed."""
        config, comm, algorithm, state = self.config, self.comm, self.algorithm, self.state
        speeds = self._speeds.relative()
        for t in range(first_round, config.rounds):  # Alg. 1 l.4
            clock, r = Clock(), Round(t, config.rounds, len(self.clients))
            cohort = sample_cohort(len(self.clients), config.sample_rate, config.seed, t)
            sizes = [self.clients.sizes[k] for k in cohort]
            sums = WeightedSums(algorithm.groups(state, self.trainer, sizes, r), self.device)
            plan = assign(cohort, self.clients.sizes, comm.client_ranks, speeds)
            mine = plan.get(comm.rank, [])
            reports = comm.collect(self._train(mine, sums, r))  # l.7-8, in parallel
            clock.mark("train")
            verdict = comm.share(self._judge(reports, cohort) if reports is not None else None)
            if verdict["failed"]:
                raise TrainingFailed(f"round {t}: {verdict['failed']}", agreed=True)
            speeds = verdict["speeds"]
            self.states.advance(verdict["kept"], t)
            comm.reduce(sums.buffer)  # l.9-10: the sums …
            clock.mark("reduce")
            line: dict[str, Any] = {}
            if comm.rank == 0:
                algorithm.server_update(state, sums, r)  # … and the division
                line = algorithm.metrics(sums, r)
                line |= {"excluded": verdict["excluded"]} if verdict["excluded"] else {}
            clock.mark("server")
            comm.broadcast(state.buffer)  # l.5-6 of the next round
            clock.mark("broadcast")
            last = t + 1 == config.rounds
            due = last or (t + 1) % config.eval_every == 0
            found = self.evaluate(self.share_of_all() if last else mine) if due else None
            clock.mark("evaluate")
            if recorder is not None and reports is not None:
                save = last or verdict["stop"] or (t + 1) % config.checkpoint_every == 0
                if save:
                    checkpoint.stage(recorder.run_dir, state, t + 1, self.states.versions)
                clock.mark("checkpoint")
                recorder.record(round_line(t, found, line, cohort, reports, clock))
                if save:
                    checkpoint.commit(recorder.run_dir)
                    self.kept_versions = [list(self.states.versions), *self.kept_versions][:2]
                self.states.collect_garbage(self.kept_versions)
            if verdict["stop"]:
                name = signal.Signals(verdict["stop"]).name
                raise Stopped(f"stopped by {name} after round {t}; --resume goes on", agreed=True)

    def _train(self, mine: list[int], sums: WeightedSums, r: Round) -> dict[str, Any]:
        """This rank's clients into the sums; the report for the server."""
        before = self._seconds()
        report: dict[str, Any] = {"samples": 0, "diverged": [], "kept": []}
        for k in mine:
            own = self.states.load(k)
            try:
                data, trainer = self.clients[k], self.trainer_of(k)
                sums.add(k, self.algorithm.client_update(trainer, data, self.state, r, own))
            except Diverged as error:
                report["diverged"].append([k, str(error)])
                if self.config.on_diverged == "stop":
                    break
                continue
            if own:
                self.states.save(k, r.t, own)
                report["kept"].append(k)
            report["samples"] += self.clients.sizes[k]
        report["seconds"] = {k: v - before[k] for k, v in self._seconds().items()}
        report["signal"] = self._stop_signal
        return report

    def _seconds(self) -> dict[str, float]:
        return {**self.trainer.seconds, "client_state": self.states.seconds}

    def _judge(self, reports: list[dict[str, Any]], cohort: list[int]) -> dict[str, Any]:
        """What the server makes of the ranks' reports."""
        # Samples a second tell a rank's speed where all clients' models are alike.
        for rank, report in enumerate(reports if len(self.trainers) == 1 else ()):
            self._speeds.update(rank, report["samples"], sum(report["seconds"].values()))
        diverged = sorted(entry for report in reports for entry in report["diverged"])
        failed = ""
        if diverged and self.config.on_diverged == "stop":
            failed = f"{diverged[0][1]}; --resume --on-diverged exclude goes on without it"
        elif len(diverged) == len(cohort):
            failed = f"every client of the cohort diverged; the first: {diverged[0][1]}"
        return {
            "failed": failed,
            "excluded": diverged,
            "kept": sorted(k for report in reports for k in report["kept"]),
            "stop": next((r["signal"] for r in reports if r["signal"]), 0),
            "speeds": self._speeds.relative(),
        }

    def request_stop(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: finish the round, save, leave with exit 75."""
        self._stop_signal = number


def run(config: Config, comm: Comm | None = None) -> Result | None:
    """Run a config to its end. Collective over `comm` (default: this process alone).

    Returns the result on rank 0, None on the others. Raises UserError, TrainingFailed, Stopped.
    """
    comm = comm or SerialComm()
    federation = Federation(config, comm)
    with _stopping_by_signal(federation):  # to the end: a signal must not end a rank that waits for others
        try:
            result = _run(federation)
        except FedprocError as error:
            if error.agreed:  # all ranks are here; after any other error the job is aborted as it stands
                federation.close()
            raise
        federation.close()
        return result


def _run(federation: Federation) -> Result | None:
    comm = federation.comm
    run_dir, first_round, finished = _open(federation)
    if finished:
        return Result(run_dir, *read_finished(run_dir)) if comm.rank == 0 else None
    recorder = None
    if federation.placements is not None:
        show_start(federation.config, comm, federation.placements)
        recorder = Recorder(run_dir, federation.config, first_round)
    federation.start(first_round)
    cpu, wall = time.process_time(), time.perf_counter()
    federation.rounds(first_round, recorder)
    cpu_share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
    hashes = federation.finish(run_dir)
    if recorder is None:
        return None
    summary = recorder.summarise(
        **hashes,
        deterministic=federation.config.deterministic,
        ranks=comm.size,
        transport=comm.name,
        server_cpu_share=round(cpu_share, 4),
    )
    return Result(run_dir, summary, recorder.lines)


@contextmanager
def _stopping_by_signal(federation: Federation) -> Iterator[None]:
    """SIGTERM and SIGUSR1 end the run after the round; afterwards they mean what they meant before."""
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            before[number] = signal.signal(number, federation.request_stop)
    except ValueError:  # not the main thread, as in some notebooks: signals keep their meaning
        pass
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _open(federation: Federation) -> tuple[Path, int, bool]:
    """The run directory and the round to start with, found by rank 0. Collective."""
    comm, config = federation.comm, federation.config
    found: list[Any] = []

    def on_rank_0() -> None:
        if comm.rank == 0:
            assert federation.placements is not None
            facts = environment(comm.name, federation.placements)
            run_dir, finished = open_run_dir(config, federation.shards, facts)
            first = 0
            kept: list[list[int]] = []
            if config.resume and not finished:
                check = partial(verify_states, run_dir)
                first, kept = checkpoint.load(run_dir, federation.state, check)
            found.extend([str(run_dir), first, finished, kept])

    federation.on_every_rank(on_rank_0)
    run_dir, first, finished, federation.kept_versions = comm.share(found)
    federation.states.open(Path(run_dir), next(iter(federation.kept_versions), []))
    if comm.rank == 0 and not finished:
        federation.states.scan()
        federation.states.collect_garbage(federation.kept_versions)
    return Path(run_dir), first, finished
