"""Which transport a run uses, decided once where every rank runs is known."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedproc_mpi.comm import Comm
from fedproc_mpi.errors import UserError

if TYPE_CHECKING:
    from fedproc_mpi.devices import Placement


def choose(transport: str, placements: Sequence["Placement"], clients: range) -> str:
    """'mpi', 'nccl' or 'gloo' for --transport auto, mpi or torch on several ranks.

    placements: of all ranks; clients: the client ranks. Raises UserError where the asked one cannot work.
    """
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in clients:
        if placements[rank].gpu is not None:
            owners[placements[rank].host, placements[rank].gpu_uuid].append(rank)
    shared = next(((gpu, ranks) for gpu, ranks in owners.items() if len(ranks) > 1), None)
    if transport == "auto":
        return "nccl" if owners and not shared and len(clients) > 1 else "mpi"
    if transport != "torch":
        return transport
    if shared:
        (host, uuid), ranks = shared
        raise UserError(
            f"--transport torch: ranks {', '.join(map(str, ranks))} share the GPU {uuid} of {host}, which "
            "NCCL does not allow; --transport mpi does, or start one client rank a GPU"
        )
    return "nccl" if owners else "gloo"


def connect_transport(
    comm: Comm, transport: str, cuda_aware: bool, placement: "Placement", placements: "list[Placement] | None"
) -> Comm:
    """The comm that the run's tensors take: `comm` itself, or torch.distributed above it. Collective.

    placements: of all ranks, on rank 0. Raises UserError, agreed.
    """
    if comm.name == "torch":  # a caller's own
        return comm
    error: UserError | None = None
    if comm.size == 1:
        if transport == "torch":
            error = UserError("--transport torch needs a server and a client rank: mpirun -n 2, or more")
        comm.agree(error)
        return comm
    chosen = None
    if placements is not None:
        try:
            chosen = choose(transport, placements, comm.client_ranks)
        except UserError as caught:
            error = caught
    comm.agree(error)
    chosen = comm.share(chosen)

    from fedproc_mpi.comm.mpi import MpiComm

    assert isinstance(comm, MpiComm)
    if cuda_aware:
        from fedproc_mpi.comm.cuda_probe import probe

        comm.agree(probe(placement.device))
        comm.cuda_aware = True
    if chosen == "mpi":
        return comm
    from fedproc_mpi.comm.torchdist import TorchComm

    return TorchComm(comm, chosen, placement.device)
