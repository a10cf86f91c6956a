"""What one rank holds during a run: built and checked from the config, the same on every rank."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedproc_mpi import algorithms
from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.clock import Clock
from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.identity import require_same
from fedproc_mpi.learn.client import Tensors, Trainer
from fedproc_mpi.learn.cohort import Speeds, assign, cohort_size
from fedproc_mpi.learn.data import Batches, Clients
from fedproc_mpi.learn.flat import Entry, FlatModel, State
from fedproc_mpi.learn.models import block_size, check_resnet_options, embedding_size
from fedproc_mpi.placement import devices
from fedproc_mpi.placement.devices import Placement
from fedproc_mpi.placement.transport import connect_transport
from fedproc_mpi.shards import Shards
from fedproc_mpi.store.init import first_model
from fedproc_mpi.tensorboard import require_tensorboard
from fedproc_mpi.terminal import say


@dataclass(frozen=True)
class Rank:
    """One rank's part of a run.

    config: complete, with the device that was found and the algorithm's options. placements: of all ranks.
    trainers: by the model's name. state: what the server sends; it holds w⁰ on rank 0. clock:
    the seconds of this rank's clients. speeds: of all client ranks.
    """

    config: Config
    comm: Comm
    placements: Sequence[Placement]
    shards: Shards
    algorithm: Algorithm
    clients: Clients
    trainers: Mapping[str, Trainer]
    state: State
    clock: Clock
    speeds: Speeds

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.state.buffer.device

    @property
    def trainer(self) -> Trainer:
        """The first client's trainer; the only one where all clients have the same model."""
        return self.trainer_of(0)

    def trainer_of(self, client: int) -> Trainer:
        """This rank's trainer for the client's model."""
        return self.trainers[self.algorithm.model_of(self.config, client)]

    def share_of_all(self) -> list[int]:
        """This rank's share of all clients."""
        everyone = range(len(self.clients))
        return assign(everyone, self.clients.sizes, self.comm.client_ranks)[self.comm.rank]

    def close(self, given: Comm) -> None:
        """End the transport that was made for this run above the `given` comm. Collective."""
        if self.comm is not given:
            self.comm.close()

    def first_kept(self, client: int) -> dict[str, torch.Tensor]:
        """What a client starts with: a model drawn for it, where models are personal."""
        if not self.algorithm.personal:
            return {}
        name = self.algorithm.model_of(self.config, client)
        shape, classes = self.shards.header.image_shape, self.shards.num_classes
        module, _ = first_model(self.config, name, client, shape, classes, self.config.init)
        model = FlatModel(module, self.config.channels_last)
        return {"model": model.vector_S, "counters": model.counters_N}


def set_up(config: Config, comm: Comm) -> Rank:
    """Build and check a rank. Collective; raises UserError, agreed, when anything is wrong on any rank.

    Where the ranks take another transport than `comm`, the Rank's comm is a new one, to be closed.
    """
    placement = devices.set_up(config, comm)
    placements = comm.exchange(placement)
    # What `auto` found becomes part of the record: going on elsewhere would give another result.
    on_gpu = placements[comm.client_ranks[0]].gpu is not None
    config = dataclasses.replace(config, device="cuda" if on_gpu else "cpu")
    with comm.agreed():
        config = algorithms.complete(config)
        algorithm = algorithms.build(config.algorithm, config.options)
        shards = _open_shards(config)
        if config.tensorboard and comm.rank == 0:
            require_tensorboard()
    require_same(comm, placement.host, config, shards.fingerprint)
    with comm.agreed():
        _verify(shards, comm)
        clients = Clients(shards, placement.device, config.channels_last, config.data_cache_mb * 10**6)
        clock = Clock()
        trainers = _trainers(config, comm, algorithm, shards, placement.device, clock)
        state = _first_state(algorithm, trainers[algorithm.model_of(config, 0)])
        if comm.rank == 0:
            algorithm.start(state, config.seed)
    connected = connect_transport(comm, config.transport, config.cuda_aware, placement, placements)
    speeds = Speeds(comm.client_ranks)
    return Rank(config, connected, placements, shards, algorithm, clients, trainers, state, clock, speeds)


def _open_shards(config: Config) -> Shards:
    shards = Shards(config.shards_copy or config.shards)
    if config.shards_copy and Path(config.shards).is_file():
        with Shards(config.shards) as original:
            if original.fingerprint != shards.fingerprint:
                raise UserError(
                    f"--shards-copy {config.shards_copy} is no copy of {config.shards}; copy it again"
                )
    if config.patience and shards.val_set is None:
        raise UserError(
            f"--patience needs a validation set, and {config.shards} has none; make it with --val-share"
        )
    if cohort_size(shards.num_clients, config.sample_rate) < 1:
        raise UserError(
            f"--sample-rate {config.sample_rate} of {shards.num_clients} clients draws none; "
            f"at least {1 / shards.num_clients:g}"
        )
    return shards


def _verify(shards: Shards, comm: Comm) -> None:
    """Each client rank checks its share of the clients, and every rank the test set. Raises UserError."""
    if comm.rank in comm.client_ranks:
        ranks = comm.client_ranks
        for client in range(ranks.index(comm.rank), shards.num_clients, len(ranks)):
            shards.client(client)
    for held_out in shards.held_out():
        held_out.verify()


def _trainers(
    config: Config, comm: Comm, algorithm: Algorithm, shards: Shards, device: torch.device, clock: Clock
) -> dict[str, Trainer]:
    """A trainer per model, by its name; all models give z of one width."""
    names = dict.fromkeys(algorithm.model_of(config, k) for k in range(shards.num_clients))
    check_resnet_options(names, config.norm, config.stem)
    batches = Batches(shards, config.augment, device)
    # The server's broadcast brings --init to the others.
    init = config.init if algorithm.personal or comm.rank == 0 else ""
    shape, modules = shards.header.image_shape, {}
    for name in names:
        modules[name], told = first_model(config, name, 0, shape, shards.num_classes, init)
        if told and comm.rank == 0:
            say(f"fedproc_mpi: {told}")
    widths = {name: embedding_size(module, shape) for name, module in modules.items()}
    width = next(iter(widths.values()))
    for name, other in widths.items():
        if other != width:
            raise UserError(
                f"model {name}: z has {other} values, the first client's has {width}; all clients' models "
                "need the same"
            )
    block = min(block_size(module, shape) for module in modules.values())
    models = {name: FlatModel(module.to(device), config.channels_last) for name, module in modules.items()}
    return {
        name: Trainer(config, model, batches, shards.num_classes, width, block, clock)
        for name, model in models.items()
    }


def _first_state(algorithm: Algorithm, trainer: Trainer) -> State:
    """Room for what the server sends, with w⁰ in it."""
    model = trainer.model
    shared: Tensors = {} if algorithm.personal else {"model": model.vector_S, "counters": model.counters_N}
    entries = {name: Entry(tuple(tensor.shape), tensor.dtype) for name, tensor in shared.items()}
    state = State(entries | algorithm.entries(trainer), model.vector_S.device)
    for name, tensor in shared.items():
        state[name].copy_(tensor)
    return state
