"""The round loop (FedProc Algorithm 1), and a run from config to summary."""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fedproc_mpi import algorithms, checkpoint, devices
from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.client import Round, TestShare, Trainer
from fedproc_mpi.cohort import Speeds, assign, cohort_size, sample_cohort
from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.config import DIGITS_SHARDS, Config
from fedproc_mpi.data import Batches, Clients
from fedproc_mpi.errors import FedprocError, Stopped, TrainingFailed, UserError
from fedproc_mpi.flat import Entry, FlatModel, State, tensors_sha256
from fedproc_mpi.models import build_model, embedding_size
from fedproc_mpi.records import Clock, Recorder, environment, open_run_dir, read_finished, round_line
from fedproc_mpi.seeds import seed_for
from fedproc_mpi.shards import Shards
from fedproc_mpi.sums import Diverged, WeightedSums


@dataclasses.dataclass(frozen=True)
class Result:
    """What `run` returns on rank 0: the run directory, the summary, the rounds' lines."""

    run_dir: Path
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


class Federation:
    """One rank's part of a run: everything that the rounds need, checked on every rank beforehand."""

    def __init__(self, config: Config, comm: Comm) -> None:
        """Collective. Raises UserError, agreed, when anything is wrong on any rank."""
        self.config, self.comm = config, comm
        self._on_every_rank(self._make_digits)
        self._on_every_rank(self._build)
        self._speeds = Speeds(comm.client_ranks)
        self._stop_signal = 0

    def _on_every_rank(self, step: Callable[[], None]) -> None:
        """Run a local step; if it fails on any rank, all raise the same error."""
        error: FedprocError | None = None
        try:
            step()
        except FedprocError as caught:
            error = caught
        self.comm.agree(error)

    def _make_digits(self) -> None:
        """The embedded data set is sharded by rank 0 when the default file is not there yet."""
        if self.comm.rank == 0 and self.config.shards == DIGITS_SHARDS and not Path(DIGITS_SHARDS).exists():
            from data_prep.__main__ import shard_digits

            shard_digits(Path(DIGITS_SHARDS))

    def _build(self) -> None:
        config, comm = self.config, self.comm
        self.algorithm: Algorithm = algorithms.build(config.algorithm, config.options)
        self.config = config = config.with_options(self.algorithm.options())
        shards = Shards(config.shards)
        self.shards = shards
        if cohort_size(shards.num_clients, config.sample_rate) < 1:
            raise UserError(
                f"--sample-rate {config.sample_rate} of {shards.num_clients} clients draws none; "
                f"at least {1 / shards.num_clients:g}"
            )
        self.device = devices.set_up(config, comm)
        share, shares = _share(comm)
        for client in range(share, shards.num_clients, shares) if share is not None else ():
            shards.verify_client(client)
        if comm.rank == 0:
            shards.verify_test()
        module = build_model(
            config.model,
            shards.header.image_shape,
            shards.num_classes,
            config.normalize_z,
            seed_for(config.seed, "model"),
            config.norm,
        )
        if config.init and comm.rank == 0:
            _load_init(module, config.init)
        self.model = FlatModel(module.to(self.device), config.channels_last)
        embedding = embedding_size(module, shards.header.image_shape)
        batches = Batches(shards, config.augment, self.device)
        self.trainer = Trainer(config, self.model, batches, shards.num_classes, embedding)
        self.clients = Clients(shards, self.device, config.channels_last, config.data_cache_mb * 10**6)
        # Rank 0 evaluates only where it is alone: elsewhere it sleeps while the client ranks work.
        self.test = TestShare(self.clients, share if share is not None else 10**9, shares)
        entries = {
            "model": Entry(tuple(self.model.vector_S.shape)),
            "counters": Entry(tuple(self.model.counters_N.shape), torch.int64),
        }
        self.state = State(entries | self.algorithm.entries(self.trainer), self.device)
        self.state["model"].copy_(self.model.vector_S)
        self.state["counters"].copy_(self.model.counters_N)

    def start(self, first_round: int) -> None:
        """w⁰ and c⁰ on every rank (Alg. 1 l.3), or the checkpoint's state. Collective."""
        if first_round == 0:
            self.comm.broadcast(self.state.buffer)
            plan = assign(range(len(self.clients)), self.clients.sizes, self.comm.client_ranks)
            mine = plan.get(self.comm.rank, [])
            self.algorithm.init(self.state, self.trainer, self.clients, mine, self.comm)
        else:
            self.comm.broadcast(self.state.buffer)

    def rounds(self, first_round: int, recorder: Recorder | None) -> None:
        """Rounds first_round … T-1. Collective. Raises TrainingFailed or Stopped, agreed."""
        config, comm, algorithm, state = self.config, self.comm, self.algorithm, self.state
        speeds = self._speeds.relative()
        for t in range(first_round, config.rounds):  # Alg. 1 l.4
            clock, r = Clock(), Round(t, config.rounds)
            cohort = sample_cohort(len(self.clients), config.sample_rate, config.seed, t)
            sizes = [self.clients.sizes[k] for k in cohort]
            sums = WeightedSums(algorithm.groups(state, self.trainer, sizes, r), self.device)
            plan = assign(cohort, self.clients.sizes, comm.client_ranks, speeds)
            report = self._train(plan.get(comm.rank, []), sums, r)  # l.7-8, in parallel
            reports = comm.collect(report)
            clock.mark("train")
            verdict = comm.share(self._judge(reports) if reports is not None else None)
            if verdict["failed"]:
                raise TrainingFailed(f"round {t}: {verdict['failed']}", agreed=True)
            speeds = verdict["speeds"]
            comm.reduce(sums.buffer)  # l.9-10: the sums …
            clock.mark("reduce")
            line: dict[str, Any] = {}
            if comm.rank == 0:
                algorithm.server_update(state, sums, r)  # … and the division
                line = algorithm.metrics(sums, r)
            clock.mark("server")
            comm.broadcast(state.buffer)  # l.5-6 of the next round
            clock.mark("broadcast")
            last = t + 1 == config.rounds
            accuracy = self._evaluate() if last or (t + 1) % config.eval_every == 0 else None
            clock.mark("evaluate")
            if recorder is not None and reports is not None:
                save = last or verdict["stop"] or (t + 1) % config.checkpoint_every == 0
                if save:
                    checkpoint.stage(recorder.run_dir, state, t + 1)
                clock.mark("checkpoint")
                recorder.record(round_line(t, accuracy, line, cohort, reports, clock))
                if save:
                    checkpoint.commit(recorder.run_dir)
            if verdict["stop"]:
                name = signal.Signals(verdict["stop"]).name
                raise Stopped(f"stopped by {name} after round {t}; --resume goes on", agreed=True)

    def _train(self, mine: list[int], sums: WeightedSums, r: Round) -> dict[str, Any]:
        """This rank's clients into the sums; the report for the server."""
        before = dict(self.trainer.seconds)
        report: dict[str, Any] = {"samples": 0, "diverged": None, "signal": self._stop_signal}
        for k in mine:
            terms = self.algorithm.client_update(self.trainer, self.clients[k], self.state, r)
            try:
                sums.add(k, terms)
            except Diverged as error:
                report["diverged"] = str(error)
                break
            report["samples"] += self.clients.sizes[k]
        report["seconds"] = {k: v - before[k] for k, v in self.trainer.seconds.items()}
        report["signal"] = self._stop_signal
        return report

    def _judge(self, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """What the server makes of the ranks' reports."""
        for rank, report in enumerate(reports):
            self._speeds.update(rank, report["samples"], sum(report["seconds"].values()))
        return {
            "failed": next((r["diverged"] for r in reports if r["diverged"]), None),
            "stop": next((r["signal"] for r in reports if r["signal"]), 0),
            "speeds": self._speeds.relative(),
        }

    def _evaluate(self) -> float | None:
        """Accuracy of the global model on the global test set; only counts travel. Collective."""
        counts = self.comm.collect(self.test.count_correct(self.trainer, self.state))
        return None if counts is None else sum(counts) / self.shards.num_test

    def request_stop(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: finish the round, save, leave with exit 75."""
        self._stop_signal = number

    def hashes(self) -> dict[str, str]:
        """model_sha256 over the model's tensors and then the prototypes; weights_sha256: the model alone."""
        self.model.load(self.state["model"], self.state["counters"])
        tensors = dict(self.model.module.state_dict())
        weights = tensors_sha256(tensors)
        if "prototypes" in self.state:
            tensors["prototypes"] = self.state["prototypes"]
        return {"model_sha256": tensors_sha256(tensors), "weights_sha256": weights}

    def save_model(self, run_dir: Path) -> None:
        """model.pt: the state_dict, and the prototypes where there are any."""
        tensors = {k: v.cpu().contiguous().clone() for k, v in self.model.module.state_dict().items()}
        extra = {
            k: v.cpu().clone() for k, v in self.state.tensors().items() if k not in ("model", "counters")
        }
        checkpoint.save_atomically({"state_dict": tensors, **extra}, run_dir / "model.pt")


def run(config: Config, comm: Comm | None = None) -> Result | None:
    """Run a config to its end. Collective over `comm` (default: this process alone).

    Returns the result on rank 0, None on the others. Raises UserError, TrainingFailed, Stopped.
    """
    comm = comm or SerialComm()
    federation = Federation(config, comm)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        try:
            signal.signal(number, federation.request_stop)
        except ValueError:  # not the main thread, as in some notebooks: signals keep their meaning
            break
    run_dir, first_round, finished = _open(federation)
    if finished:
        return Result(run_dir, *read_finished(run_dir)) if comm.rank == 0 else None
    recorder = Recorder(run_dir, federation.config, first_round) if comm.rank == 0 else None
    federation.start(first_round)
    cpu, wall = time.process_time(), time.perf_counter()
    federation.rounds(first_round, recorder)
    cpu_share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
    if recorder is None:
        return None
    federation.save_model(run_dir)
    summary = recorder.summarise(
        **federation.hashes(),
        deterministic=True,
        ranks=comm.size,
        transport=comm.name,
        server_cpu_share=round(cpu_share, 4),
    )
    return Result(run_dir, summary, recorder.lines)


def _open(federation: Federation) -> tuple[Path, int, bool]:
    """The run directory and the round to start with, found by rank 0. Collective."""
    comm, config = federation.comm, federation.config
    found: list[Any] = []

    def on_rank_0() -> None:
        if comm.rank == 0:
            facts = environment(comm.name, comm.size)
            run_dir, finished = open_run_dir(config, federation.shards, facts)
            first = checkpoint.load(run_dir, federation.state) if config.resume and not finished else 0
            found.extend([str(run_dir), first, finished])

    federation._on_every_rank(on_rank_0)
    run_dir, first, finished = comm.share(found)
    return Path(run_dir), first, finished


def _share(comm: Comm) -> tuple[int | None, int]:
    """This rank's number among the client ranks (None: it is none), and how many there are."""
    ranks = comm.client_ranks
    return (ranks.index(comm.rank) if comm.rank in ranks else None), len(ranks)


def _load_init(module: torch.nn.Module, path: str) -> None:
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(saved.get("state_dict", saved))
    except Exception as error:  # a foreign file can fail in any way inside torch.load
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--init {path}: cannot be loaded into this model: {reason}") from error
