"""What a rank holds during a run, built and checked from the config; evaluation; what a run leaves."""

import dataclasses
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproc_mpi import algorithms
from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.comm import Comm
from fedproc_mpi.config import DIGITS_SHARDS, Config
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.learn.client import Trainer
from fedproc_mpi.learn.cohort import assign, cohort_size
from fedproc_mpi.learn.data import Batches, Clients
from fedproc_mpi.learn.evaluation import TestShare, accuracies, add_counts
from fedproc_mpi.learn.flat import Entry, FlatModel, State, list_sha256, tensors_sha256
from fedproc_mpi.learn.models import build_model, check_norm, embedding_size
from fedproc_mpi.learn.seeds import seed_for
from fedproc_mpi.placement import devices
from fedproc_mpi.placement.transport import connect_transport
from fedproc_mpi.shards import Shards
from fedproc_mpi.store import checkpoint
from fedproc_mpi.store.client_state import NONE, ClientState, ClientStates
from fedproc_mpi.store.records import MODEL


class Parts:
    """One rank's part of a run: everything that the rounds need, checked on every rank beforehand."""

    def __init__(self, config: Config, comm: Comm) -> None:
        """Collective. Raises UserError, agreed, when anything is wrong on any rank."""
        self.comm = self._given_comm = comm
        placement = devices.set_up(config, comm)
        self.device = placement.device
        reports = comm.collect(dataclasses.asdict(placement))
        self.placements = None if reports is None else [devices.Placement(**report) for report in reports]
        kind = None if self.placements is None else self.placements[comm.client_ranks[0]].device.type
        # What `auto` found becomes part of the record: going on elsewhere would give another result.
        self.config = dataclasses.replace(config, device=comm.share(kind))
        self.on_every_rank(self._make_digits)
        self.on_every_rank(self._build)
        self.comm = connect_transport(comm, config.transport, config.cuda_aware, placement, self.placements)

    def close(self) -> None:
        """End the transport that was made for this run. Collective."""
        if self.comm is not self._given_comm:
            self.comm.close()

    def on_every_rank(self, step: Callable[[], None]) -> None:
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
            from data_prep.cli import shard_digits

            shard_digits(Path(DIGITS_SHARDS))

    def _build(self) -> None:
        config, comm = self.config, self.comm
        self.algorithm: Algorithm = algorithms.build(config.algorithm, config.options)
        self.config = config = config.with_options(self.algorithm.options())
        shards = Shards(config.shards_copy or config.shards)
        self.shards = shards
        if cohort_size(shards.num_clients, config.sample_rate) < 1:
            raise UserError(
                f"--sample-rate {config.sample_rate} of {shards.num_clients} clients draws none; "
                f"at least {1 / shards.num_clients:g}"
            )
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
        check_norm(kinds, config.norm)
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
        shared = {} if self.algorithm.personal else {"model": model.vector_S, "counters": model.counters_N}
        entries = {name: Entry(tuple(tensor.shape), tensor.dtype) for name, tensor in shared.items()}
        self.state = State(entries | self.algorithm.entries(self.trainer), self.device)
        for name, tensor in shared.items():
            self.state[name].copy_(tensor)

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
        classes = len(header.class_names)
        module = build_model(kind, header.image_shape, classes, config.normalize_z, seed, config.norm)
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

    def share_of_all(self) -> list[int]:
        """This rank's share of all clients."""
        plan = assign(range(len(self.clients)), self.clients.sizes, self.comm.client_ranks)
        return plan.get(self.comm.rank, [])

    def _own_trainer(self, client: int) -> Trainer:
        """The trainer of this client's kind, with the client's own model loaded."""
        trainer, own = self.trainer_of(client), self.states.load(client)
        trainer.model.load(own["model"], own["counters"])
        return trainer

    def finish(self, run_dir: Path) -> dict[str, str]:
        """Write model.pt; on rank 0 the hashes. Collective.

        model.pt: the state_dict, and the prototypes where there are any; for personal models the kinds
        and versions of the clients' own. model_sha256 runs over the model's tensors and then the
        prototypes, for personal models over the clients' hashes in client order; weights_sha256 leaves
        the prototypes out.
        """
        if self.comm.rank != 0 and not self.algorithm.personal:
            return {}
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
            checkpoint.save_atomically({**saved, **extra}, run_dir / MODEL)
        return dict(zip(("model_sha256", "weights_sha256"), hashes, strict=True))

    def _finish_personal(self, prototypes: dict[str, Tensor]) -> tuple[dict[str, Any], list[str]]:
        """What model.pt says of the clients' models, and the hashes over all. Collective."""
        mine: dict[int, list[str]] = {}
        never = {k for k, version in enumerate(self.states.versions) if version == NONE}
        for k in self.share_of_all():
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


def _share(comm: Comm) -> tuple[int | None, int]:
    """This rank's number among the client ranks (None: it is none), and how many there are."""
    ranks = comm.client_ranks
    return (ranks.index(comm.rank) if comm.rank in ranks else None), len(ranks)


def _load_init(module: torch.nn.Module, path: str) -> None:
    try:
        if zipfile.is_zipfile(path):  # as all but files from before torch 1.6 are
            checkpoint.check_archive(Path(path))
        saved = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(saved.get("state_dict", saved))
    except Exception as error:  # a foreign file can fail in any way inside torch.load
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--init {path}: cannot be loaded into this model: {reason}") from error
    for name, tensor in module.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"--init {path}: {name} holds values that are not finite")
