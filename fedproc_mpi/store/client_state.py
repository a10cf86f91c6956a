"""What clients keep from one of their rounds to the next: files of the run directory, never a rank's own.

    clients/client00007_round00012.pt    what client 7 kept after round 12

A client may train on another rank next round, or after a resume. A file is never renamed or overwritten;
the checkpoint, which lists each client's round, is the only commit. A file lives until neither the run
nor a kept checkpoint names it; files that none names after a kill are deleted when the run goes on.
"""

import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.store.checkpoint import read_checked, sync_names, write_synced

ClientState = dict[str, Tensor]
NONE = -1  # the version of a client that has kept nothing yet
DIRECTORY = "clients"
_FILE = re.compile(r"client(\d+)_round(\d+)\.pt")


def state_path(run_dir: Path, client: int, version: int) -> Path:
    """The file of what a client kept after round `version`."""
    return run_dir / DIRECTORY / f"client{client:05d}_round{version:05d}.pt"


class ClientStates:
    """Loads and saves what clients keep; those used last stay in memory up to `cache_bytes`.

    versions: for each client the round of its newest state, the same on every rank. initial(k): what
    client k starts with.
    """

    def __init__(
        self,
        num_clients: int,
        device: torch.device,
        cache_bytes: int,
        initial: Callable[[int], ClientState],
    ) -> None:
        self.versions = [NONE] * num_clients
        self.seconds = 0.0
        self._device, self._room, self._initial = device, cache_bytes, initial
        self._cache: OrderedDict[int, tuple[int, ClientState]] = OrderedDict()
        self._on_disk: set[tuple[int, int]] = set()
        self._run_dir = Path()

    def open(self, run_dir: Path, versions: Sequence[int]) -> None:
        """Take over the run directory and the checkpoint's versions (empty: a new run)."""
        self._run_dir = run_dir
        self.versions = list(versions) or [NONE] * len(self.versions)

    def load(self, client: int) -> ClientState:
        """What the client kept, on this rank's device. Tensors may be replaced, not changed in place.

        Raises UserError when its file cannot be read.
        """
        start, version = time.perf_counter(), self.versions[client]
        if client in self._cache and self._cache[client][0] == version:
            self._cache.move_to_end(client)
            kept = self._cache[client][1]
        elif version == NONE:
            kept = self._initial(client)
        else:
            try:
                kept = read_state(self._run_dir, client, version)
            except UserError as error:
                raise UserError(
                    f"{error}; --resume goes back to the last checkpoint that is whole"
                ) from error
            self._remember(client, version, kept)
        kept = {name: tensor.to(self._device) for name, tensor in kept.items()}
        self.seconds += time.perf_counter() - start
        return kept

    def save(self, client: int, version: int, kept: ClientState) -> None:
        """Write what the client keeps after round `version`; it counts from `advance` on.

        Raises UserError when the disk is full or the directory cannot be written.
        """
        start = time.perf_counter()
        kept = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in kept.items()}
        path = state_path(self._run_dir, client, version)
        try:
            if not self._run_dir.is_dir():
                raise UserError(
                    f"{self._run_dir} is not there on {socket.gethostname()}: where clients keep state, the "
                    "run directory must be on a file system that all ranks see (--run-dir)"
                )
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)  # what an attempt at this round left that never counted
            write_synced(kept, path, "xb")
            sync_names(path.parent)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise UserError(
                f"cannot save {path}: {reason(error)}; make room and go on with --resume"
            ) from error
        self._remember(client, version, kept)
        self.seconds += time.perf_counter() - start

    def advance(self, clients: Iterable[int], version: int) -> None:
        """From now on these clients' states are those of round `version`. The same call on every rank."""
        for client in clients:
            self.versions[client] = version

    def scan(self) -> None:
        """Find the files that are there, for the first `collect_garbage`. On rank 0."""
        found = (_FILE.fullmatch(path.name) for path in (self._run_dir / DIRECTORY).glob("*"))
        self._on_disk = {(int(match[1]), int(match[2])) for match in found if match}

    def collect_garbage(self, kept_checkpoints: Iterable[Sequence[int]]) -> None:
        """Delete the files that neither the run nor a kept checkpoint names. Each round, on rank 0."""
        named = {pair for versions in (self.versions, *kept_checkpoints) for pair in enumerate(versions)}
        for client, version in self._on_disk - named:
            with suppress(OSError):  # it stays: disk lost, nothing else
                state_path(self._run_dir, client, version).unlink(missing_ok=True)
        self._on_disk = {(client, version) for client, version in named if version != NONE}

    def _remember(self, client: int, version: int, kept: ClientState) -> None:
        self._forget(client)
        self._room -= _bytes(kept)
        self._cache[client] = version, kept
        while self._room < 0 and self._cache:
            self._forget(next(iter(self._cache)))

    def _forget(self, client: int) -> None:
        if client in self._cache:
            self._room += _bytes(self._cache.pop(client)[1])


def read_state(run_dir: Path, client: int, version: int) -> ClientState:
    """What a client kept after round `version`, on the CPU. UserError when the file cannot be read."""
    path = state_path(run_dir, client, version)
    try:
        return read_checked(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(f"{path}: client {client}'s state cannot be read ({type(error).__name__})") from error


def verify_states(run_dir: Path, versions: Sequence[int]) -> None:
    """Read the files of all clients' versions through. UserError when one is missing or has changed."""
    for client, version in enumerate(versions):
        if version != NONE:
            read_state(run_dir, client, version)


def _bytes(kept: ClientState) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
