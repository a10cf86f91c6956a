"""What clients keep from one of their rounds to the next: files of the run directory, never a rank's own.

    clients/client00007_round00012.pt    what client 7 kept after round 12

A client may train on another rank next round, or after a resume. The round in the name is the file's
version. The checkpoint lists each client's version and is the only commit: a file lives until neither the
run nor a kept checkpoint names it, and files that none names after a kill are deleted when the run goes on.
"""

import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from cachetools import LRUCache
from torch import Tensor

from fedproc_mpi.clock import Clock
from fedproc_mpi.errors import UserError
from fedproc_mpi.store.files import read_tensors, save_tensors

Kept = dict[str, Tensor]
NONE = -1  # the version of a client that has kept nothing yet
DIRECTORY = "clients"
_FILE = re.compile(r"client(\d+)_round(\d+)\.pt")


def client_file(run_dir: Path, client: int, version: int) -> Path:
    """The file of what a client kept after round `version`."""
    return run_dir / DIRECTORY / f"client{client:05d}_round{version:05d}.pt"


class ClientFiles:
    """Loads and saves what clients keep; what was used last stays in memory up to `cache_bytes`.

    versions: for each client the round of its newest file, the same on every rank. initial(k): what
    client k starts with. clock: gets the seconds, as `client_state`.
    """

    def __init__(
        self,
        run_dir: Path,
        versions: Sequence[int],
        device: torch.device,
        cache_bytes: int,
        initial: Callable[[int], Kept],
        clock: Clock | None = None,
    ) -> None:
        self.run_dir, self.versions = run_dir, list(versions)
        self._device, self._initial, self._clock = device, initial, clock or Clock()
        self._cache: LRUCache[int, tuple[int, Kept]] = LRUCache(cache_bytes, lambda entry: _bytes(entry[1]))
        self._on_disk: set[tuple[int, int]] = set()

    def load(self, client: int) -> Kept:
        """What the client kept, on this rank's device. Tensors may be replaced, not changed in place.

        Raises UserError when its file cannot be read.
        """
        with self._clock.measure("client_state"):
            version = self.versions[client]
            cached_version, kept = self._cache.get(client, (NONE, {}))
            if version == NONE:
                kept = self._initial(client)
            elif version != cached_version:
                try:
                    kept = read_client(self.run_dir, client, version)
                except UserError as error:
                    raise UserError(
                        f"{error}; --resume goes back to the last checkpoint that is whole"
                    ) from error
                self._remember(client, version, kept)
            return {name: tensor.to(self._device) for name, tensor in kept.items()}

    def save(self, client: int, version: int, kept: Mapping[str, Tensor]) -> None:
        """Write what the client keeps after round `version`; it counts from `advance` on.

        Raises UserError when the disk is full or the directory cannot be written.
        """
        with self._clock.measure("client_state"):
            if not self.run_dir.is_dir():
                raise UserError(
                    f"{self.run_dir} is not there on {socket.gethostname()}: where clients keep state, the "
                    "run directory must be on a file system that all ranks see (--run-dir)"
                )
            on_cpu = {
                name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in kept.items()
            }
            path = client_file(self.run_dir, client, version)
            with suppress(OSError):  # told by the save below
                path.parent.mkdir(exist_ok=True)
            save_tensors(on_cpu, path)
            self._remember(client, version, on_cpu)

    def advance(self, clients: Iterable[int], version: int) -> None:
        """From now on these clients' files are those of round `version`. The same call on every rank."""
        for client in clients:
            self.versions[client] = version

    def scan(self) -> None:
        """Find the files that are there, for the first `collect_garbage`. On rank 0."""
        found = (_FILE.fullmatch(path.name) for path in (self.run_dir / DIRECTORY).glob("*"))
        self._on_disk = {(int(match[1]), int(match[2])) for match in found if match}

    def collect_garbage(self, kept_checkpoints: Iterable[Sequence[int]]) -> None:
        """Delete the files that neither the run nor a kept checkpoint names. Each round, on rank 0."""
        named = {pair for versions in (self.versions, *kept_checkpoints) for pair in enumerate(versions)}
        for client, version in self._on_disk - named:
            with suppress(OSError):  # it stays: disk lost, nothing else
                client_file(self.run_dir, client, version).unlink(missing_ok=True)
        self._on_disk = {(client, version) for client, version in named if version != NONE}

    def _remember(self, client: int, version: int, kept: Kept) -> None:
        self._cache.pop(client, None)
        with suppress(ValueError):  # larger than the whole cache
            self._cache[client] = version, kept


def read_client(run_dir: Path, client: int, version: int) -> Kept:
    """What a client kept after round `version`, on the CPU. UserError when the file cannot be read."""
    path = client_file(run_dir, client, version)
    try:
        kept: Kept = read_tensors(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(f"{path}: client {client}'s state cannot be read ({type(error).__name__})") from error
    return kept


def verify_clients(run_dir: Path, versions: Sequence[int]) -> None:
    """Read the files of all clients' versions through. UserError when one is missing or has changed."""
    for client, version in enumerate(versions):
        if version != NONE:
            read_client(run_dir, client, version)


def _bytes(kept: Kept) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
