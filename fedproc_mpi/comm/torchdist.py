"""torch.distributed among the client ranks: NCCL on GPUs, gloo on CPUs. Small messages stay with MPI.

The server need not have a GPU, so it is no member of the group: the sums of the client ranks meet on the
first of them and go to the server by MPI; what the server changed goes back the same way. Nothing is set
by hand: rank 0 holds the store at which the group meets, and its address travels by MPI.
"""

import socket
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fedproc_mpi.comm.mpi import MpiComm, sleep_until_done, split
from fedproc_mpi.errors import UserError, reason

FIRST = 1  # the client rank that talks with the server; rank 0 in the group
LOOPBACK = "127.0.0.1"
KNOCK = 5  # seconds for an address to answer
MEET = timedelta(seconds=60)  # for all to be in the store
COLLECTIVE = timedelta(minutes=10)  # all ranks are there when one begins, so this is for the transfer


class TorchComm(MpiComm):
    """`mpi`'s ranks, the client ranks among them joined in a torch.distributed group as well.

    Construction is collective, and needs 2 ranks. Raises UserError where the group cannot form: agreed where
    ranks do not reach rank 0; by one rank alone where the backend fails, since the others then wait in it.
    """

    name = "torch"

    def __init__(self, mpi: MpiComm, backend: str, device: torch.device) -> None:
        super().__init__(mpi._comm)
        assert self.size > 1
        self.cuda_aware, self.backend, self._device = mpi.cuda_aware, backend, device
        one_host = len(self.local_ranks()) == self.size
        with self.agreed():
            if self.rank == 0:
                self._store = _listen()
        here = ([LOOPBACK] if one_host else _own_addresses(), self._store.port) if self.rank == 0 else None
        addresses, port = self.share(here)
        with self.agreed():
            if self.rank != 0:
                self._store = _reach(addresses, port)
        if self.rank != 0:
            self._join()

    def broadcast(self, buffer: Tensor) -> None:
        self._sleep_until_all_are_here()
        as_bytes = buffer.view(-1).view(torch.uint8)  # NCCL and gloo do not know every dtype
        if self.rank == 0:
            for part in self._parts(as_bytes, read=True, write=False):
                self._comm.Send(part, dest=FIRST)
            return
        if self.rank == FIRST:
            for part in self._parts(as_bytes, read=False, write=True):
                self._comm.Recv(part, source=0)
        for chunk in split(as_bytes):
            dist.broadcast(chunk, src=0)

    def reduce(self, buffer: Tensor) -> None:
        """The server alone needs the sums, so the group reduces to one rank: half an all-reduce's bytes."""
        assert buffer.dtype == torch.float64
        self._sleep_until_all_are_here()
        if self.rank == 0:
            for chunk in split(buffer):
                received = torch.empty(chunk.shape, dtype=chunk.dtype)
                sleep_until_done(self._comm.Irecv(received.numpy(), source=FIRST))
                chunk += received.to(chunk.device)
            return
        for chunk in split(buffer):
            dist.reduce(chunk, dst=0)
        if self.rank == FIRST:
            for part in self._parts(buffer, read=True, write=False):
                self._comm.Send(part, dest=0)

    def close(self) -> None:
        """Take the group down, clients first; the store at which they met goes last."""
        if self.rank != 0:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            dist.destroy_process_group()
        self._sleep_until_all_are_here()
        del self._store

    def _join(self) -> None:
        try:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore("fedproc_mpi", self._store),
                rank=self.rank - FIRST,
                world_size=self.size - FIRST,
                timeout=MEET if hasattr(dist, "set_timeout") else COLLECTIVE,
                device_id=self._device if self._device.type == "cuda" else None,
            )
            if hasattr(dist, "set_timeout"):
                dist.set_timeout(COLLECTIVE)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())[:300]  # NCCL's words are long, and the cause comes last
            raise UserError(
                f"--transport torch: no {self.backend} group: {why}; --transport mpi, or name the network "
                f"interface in {'NCCL' if self.backend == 'nccl' else 'GLOO'}_SOCKET_IFNAME"
            ) from error


def _listen() -> dist.TCPStore:
    """Open the store, on every address of this host; the one here is rank 0's own way to it."""
    try:
        return dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=MEET)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"--transport torch: rank 0 cannot listen ({reason(error)}); --transport mpi"
        ) from error


def _reach(addresses: list[str], port: int) -> dist.TCPStore:
    """Connect to rank 0's store, at the first address that answers."""
    if dist.is_initialized():
        raise UserError("--transport torch: torch.distributed is in use already; --transport mpi")
    for address in addresses:
        with suppress(OSError, RuntimeError):
            # The store itself would knock for long, and complain at length.
            with socket.create_connection((address, port), timeout=KNOCK) as knock:
                found = knock.getpeername()[0]
            return dist.TCPStore(found, port, is_master=False, timeout=MEET)
    raise UserError(
        f"--transport torch: {socket.gethostname()} cannot reach rank 0 at {' or '.join(addresses)}, "
        f"port {port}; --transport mpi works without that"
    )


def _own_addresses() -> list[str]:
    """Names and addresses of this host at which another may reach it, best first."""
    name = socket.gethostname()
    with suppress(OSError):
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)}
        return [*sorted(a for a in found if not a.startswith("127.")), name, socket.getfqdn()]
    return [name]
