"""The round loop (FedProc Algorithm 1), and a run from config to summary."""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fedproc_mpi import algorithms, checkpoint, devices
from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.client import Round, Trainer
from fedproc_mpi.client_state import ClientState, ClientStates
from fedproc_mpi.cohort import Speeds, assign, cohort_size, sample_cohort
from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.config import DIGITS_SHARDS, Config
from fedproc_mpi.data import Batches, Clients
from fedproc_mpi.errors import FedprocError, Stopped, TrainingFailed, UserError
from fedproc_mpi.evaluation import TestShare, accuracies, add_counts
from fedproc_mpi.flat import Entry, FlatModel, State, list_sha256, tensors_sha256
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
        self._kept: list[list[int]] = []  # the clients' versions that the kept checkpoints name

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
        self.clients = Clients(shards, self.device, config.channels_last, config.data_cache_mb * 10**6)
        self.states = ClientStates(
            shards.num_clients, self.device, config.client_cache_mb * 10**6, self._first_own
        )
        # Rank 0 evaluates only where it is alone: elsewhere it sleeps while the client ranks work.
        self.test = TestShare(self.clients, share, shares)
        kinds = dict.fromkeys(self.algorithm.model_of(config, k) for k in range(shards.num_clients))
        self.trainers = {kind: self._trainer(kind) for kind in kinds}
        self.trainer = self.trainer_of(0)
        for kind, trainer in self.trainers.items():
            trainer.seconds = self.trainer.seconds
            if trainer.embedding != self.trainer.embedding:
                raise UserError(
                    f"model {kind}: z has {trainer.embedding} values, the first client's has "
                    f"{self.trainer.embedding}; all clients' models need the same"
                )
        self.model = model = self.trainer.model
        entries = (
            {}
            if self.algorithm.personal
            else {
                "model": Entry(tuple(model.vector_S.shape)),
                "counters": Entry(tuple(model.counters_N.shape), torch.int64),
            }
        )
        self.state = State(entries | self.algorithm.entries(self.trainer), self.device)
        if not self.algorithm.personal:
            self.state["model"].copy_(model.vector_S)
            self.state["counters"].copy_(model.counters_N)

    def trainer_of(self, client: int) -> Trainer:
        """The rank's trainer for this client's kind of model."""
        return self.trainers[self.algorithm.model_of(self.config, client)]

    def _trainer(self, kind: str) -> Trainer:
        config, shards = self.config, self.shards
        module = self._module(kind, client=0)
        embedding = embedding_size(module, shards.header.image_shape)
        model = FlatModel(module.to(self.device), config.channels_last)
        batches = Batches(shards, config.augment, self.device)
        return Trainer(config, model, batches, shards.num_classes, embedding)

    def _module(self, kind: str, client: int) -> torch.nn.Module:
        """A new model with w⁰; personal models are drawn for each client."""
        config, header = self.config, self.shards.header
        seed = seed_for(config.seed, "model", client=client)
        module = build_model(kind, header.image_shape, len(header.class_names), config.normalize_z, seed)
        if config.init and (self.algorithm.personal or self.comm.rank == 0):
            _load_init(module, config.init)
        return module

    def _first_own(self, client: int) -> ClientState:
        """What a client starts with: its own model, where models are personal."""
        if not self.algorithm.personal:
            return {}
        module = self._module(self.algorithm.model_of(self.config, client), client)
        model = FlatModel(module, self.config.channels_last)
        return {"model": model.vector_S, "counters": model.counters_N}

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
            found = self.evaluate(self._share_of_all() if last else mine) if due else None
            clock.mark("evaluate")
            if recorder is not None and reports is not None:
                save = last or verdict["stop"] or (t + 1) % config.checkpoint_every == 0
                if save:
                    checkpoint.stage(recorder.run_dir, state, t + 1, self.states.versions)
                clock.mark("checkpoint")
                recorder.record(round_line(t, found, line, cohort, reports, clock))
                if save:
                    checkpoint.commit(recorder.run_dir)
                    self._kept = [list(self.states.versions), *self._kept][:2]
                self.states.collect_garbage(self._kept)
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
                sums.add(
                    k, self.algorithm.client_update(self.trainer_of(k), self.clients[k], self.state, r, own)
                )
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
        for rank, report in enumerate(reports):
            self._speeds.update(rank, report["samples"], sum(report["seconds"].values()))
        diverged = sorted(entry for report in reports for entry in report["diverged"])
        failed = ""
        if diverged and self.config.on_diverged == "stop":
            failed = f"{diverged[0][1]}; --on-diverged exclude goes on without"
        elif len(diverged) == len(cohort):
            failed = f"every client of the cohort diverged; the first: {diverged[0][1]}"
        return {
            "failed": failed,
            "excluded": diverged,
            "kept": sorted(k for report in reports for k in report["kept"]),
            "stop": next((r["signal"] for r in reports if r["signal"]), 0),
            "speeds": self._speeds.relative(),
        }

    def evaluate(self, personal: list[int]) -> dict[str, float] | None:
        """Both views (`evaluation.accuracies`), on rank 0; None elsewhere. Collective.

        personal: the clients whose own models this rank evaluates, where models are personal.
        """
        state, algorithm = self.state, self.algorithm

        def scores(z_BD: Tensor) -> Tensor | None:
            return algorithm.prototype_scores(z_BD, state)

        if algorithm.personal:
            mine = [self.test.count_personal(self._own_trainer(k), k, scores) for k in personal]
        else:
            self.model.load(state["model"], state["counters"])
            mine = [self.test.count(self.trainer, scores)]
        counts = self.comm.collect(add_counts(mine))
        if counts is None:
            return None
        return accuracies(add_counts(counts), self.shards.num_test, self.test.own_sizes())

    def _share_of_all(self) -> list[int]:
        """This rank's share of all clients."""
        plan = assign(range(len(self.clients)), self.clients.sizes, self.comm.client_ranks)
        return plan.get(self.comm.rank, [])

    def _own_trainer(self, client: int) -> Trainer:
        """The trainer of this client's kind, with the client's own model loaded."""
        trainer, own = self.trainer_of(client), self.states.load(client)
        trainer.model.load(own["model"], own["counters"])
        return trainer

    def request_stop(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: finish the round, save, leave with exit 75."""
        self._stop_signal = number

    def finish(self, run_dir: Path) -> dict[str, str]:
        """Write model.pt; on rank 0 the hashes. Collective.

        model.pt: the state_dict, and the prototypes where there are any; for personal models the kinds
        and versions of the clients' own. model_sha256 runs over the model's tensors and then the
        prototypes, for personal models over the clients' hashes in client order; weights_sha256 leaves
        the prototypes out.
        """
        extra = {
            k: v.cpu().clone() for k, v in self.state.tensors().items() if k not in ("model", "counters")
        }
        prototypes = {k: v for k, v in extra.items() if k == "prototypes"}
        if not self.algorithm.personal:
            self.model.load(self.state["model"], self.state["counters"])
            tensors = {k: v.cpu().contiguous().clone() for k, v in self.model.module.state_dict().items()}
            saved: dict[str, Any] = {"state_dict": tensors}
            hashes = [tensors_sha256(tensors | prototypes), tensors_sha256(tensors)]
        else:
            saved, hashes = self._finish_personal(prototypes)
        if self.comm.rank == 0:
            checkpoint.save_atomically({**saved, **extra}, run_dir / "model.pt")
        return dict(zip(("model_sha256", "weights_sha256"), hashes, strict=True))

    def _finish_personal(self, prototypes: dict[str, Tensor]) -> tuple[dict[str, Any], list[str]]:
        """What model.pt says of the clients' models, and the hashes over all. Collective."""
        mine: dict[int, list[str]] = {}
        never = [k for k, version in enumerate(self.states.versions) if version < 0]
        for k in self._share_of_all():
            if k in never:  # never drawn: what it starts with is its model
                self.states.save(k, self.config.rounds, self.states.load(k))
            tensors = self._own_trainer(k).model.module.state_dict()
            mine[k] = [tensors_sha256(tensors | prototypes), tensors_sha256(tensors)]
        reports = self.comm.collect(mine)
        self.states.advance(never, self.config.rounds)
        if reports is None:
            return {}, ["", ""]
        by_client = sorted((int(k), hashes) for report in reports for k, hashes in report.items())
        kinds = [self.algorithm.model_of(self.config, k) for k in range(len(self.clients))]
        saved = {"client_versions": list(self.states.versions), "client_models": kinds}
        return saved, [list_sha256(hashes) for hashes in zip(*(h for _, h in by_client), strict=True)]


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
    hashes = federation.finish(run_dir)
    if recorder is None:
        return None
    summary = recorder.summarise(
        **hashes,
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
            kept = checkpoint.kept_versions(run_dir) if first else []
            found.extend([str(run_dir), first, finished, kept])

    federation._on_every_rank(on_rank_0)
    run_dir, first, finished, federation._kept = comm.share(found)
    federation.states.open(Path(run_dir), federation._kept[0] if first else [])
    if comm.rank == 0 and not finished:
        federation.states.scan()
        federation.states.collect_garbage(federation._kept)
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
