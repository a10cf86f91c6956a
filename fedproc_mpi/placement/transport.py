"""Which transport a run uses, decided once where every rank runs is known."""

from collections import defaultdict
from collections.abc import Sequence

import torch

from fedproc_mpi.comm import Comm
from fedproc_mpi.errors import UserError
from fedproc_mpi.placement.devices import Placement
from fedproc_mpi.terminal import say


def choose(transport: str, placements: Sequence[Placement], clients: range) -> str:
    """'mpi', 'nccl' or 'gloo' for --transport auto, mpi or torch on several ranks.

    placements: of all ranks; clients: the client ranks. Raises UserError where the asked one cannot work.
    """
    if len(placements) == 1 and transport == "torch":
        raise UserError("--transport torch needs a server and a client rank: mpirun -n 2, or more")
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in clients:
        if placements[rank].gpu is not None:  # slices (MIG) of one card are one GPU to NCCL
            owners[placements[rank].host, placements[rank].gpu_pci or placements[rank].gpu_uuid].append(rank)
    shared = next(((gpu, ranks) for gpu, ranks in owners.items() if len(ranks) > 1), None)
    if transport == "auto":
        return "nccl" if owners and not shared and len(clients) > 1 else "mpi"
    if transport != "torch":
        return transport
    if shared:
        (host, _), ranks = shared
        uuids = sorted({placements[rank].gpu_uuid for rank in ranks})
        raise UserError(
            f"--transport torch: ranks {', '.join(map(str, ranks))} share the GPU {', '.join(uuids)} of "
            f"{host}, which NCCL does not allow; --transport mpi does, or start one client rank per GPU"
        )
    return "nccl" if owners else "gloo"


def connect_transport(
    comm: Comm, transport: str, cuda_aware: bool, placement: Placement, placements: Sequence[Placement]
) -> Comm:
    """The comm that the run's tensors take: `comm` itself, or torch.distributed above it. Collective.

    placements: of all ranks. Raises UserError, agreed.
    """
    if comm.name == "torch":  # a caller's own
        return comm
    with comm.agreed():
        chosen = choose(transport, placements, comm.client_ranks)
    if comm.size == 1:
        return comm

    from fedproc_mpi.comm.mpi import MpiComm

    assert isinstance(comm, MpiComm)
    comm.cuda_aware = False
    if cuda_aware:
        from fedproc_mpi.comm.cuda_probe import probe

        comm.agree(probe(placement.device))
        comm.cuda_aware = True
        comm.agree(_carries(comm, placement.device))
    if chosen == "mpi":
        return comm
    from fedproc_mpi.comm.torchdist import TorchComm

    try:
        return TorchComm(comm, chosen, placement.device)
    except UserError as error:
        if transport != "auto" or not error.agreed:
            raise
        if comm.rank == 0:
            say(f"fedproc_mpi: {error}: going on over mpi")
        return comm


def _carries(comm: Comm, device: torch.device) -> UserError | None:
    """Whether values arrive as they were sent between these very ranks. Collective."""
    values = torch.arange(2**16, dtype=torch.float64, device=device)
    sent = values.clone() if comm.rank == 0 else torch.zeros_like(values)
    comm.broadcast(sent)
    right = torch.equal(sent, values)
    comm.reduce(sent)
    right &= comm.rank != 0 or torch.equal(sent, comm.size * values)
    return None if right else UserError("--cuda-aware: values changed on the way; leave the flag away")
