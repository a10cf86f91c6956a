"""What every source has: the flags of the partition, the seed and the file."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from data_prep import partitions
from data_prep.heldout import stratified_split
from data_prep.partition_file import read_partition
from data_prep.partitions import Indices
from data_prep.sources.base import Source
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import REQUIRED, flag, setting, validate

BELONGS = {  # which partitions a flag is for
    "beta": ("dirichlet",),
    "ways": ("classes-per-client",),
    "std": ("classes-per-client",),
    "shots": ("classes-per-client",),
    "min_samples": ("dirichlet", "iid"),
}


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """A source with its partition; each source derives from it, and its fields are the source's flags.

    made_for_clients: the source makes its samples for --clients, whatever the partition.
    """

    made_for_clients: ClassVar[bool] = False

    out: Path = setting(REQUIRED, "the shards file to write")
    clients: int = setting(10, "clients m (natural: as many as there are sites)", low=1)
    partition: Literal["auto", "dirichlet", "iid", "classes-per-client", "natural"] = setting(
        "auto", "how samples go to clients; auto: natural where the data has sites, else dirichlet"
    )
    partition_file: Path | None = setting(
        None, "a partition of your own: each client's training rows, as .json or as .csv (row, client)"
    )
    beta: float = setting(0.5, "dirichlet: concentration; small is heterogeneous", above=0)
    ways: int = setting(3, "classes-per-client: mean number of classes of a client", low=1)
    std: int = setting(0, "classes-per-client: each client has ways ± std classes, uniform", low=0)
    shots: int = setting(0, "classes-per-client: samples of each class; 0: an even share of the class", low=0)
    min_samples: int = setting(10, "dirichlet, iid: fewest samples of a client", low=1)
    val_share: float = setting(
        0.0, "share of each client's samples held out for validation, by class, whole groups; 0: none", low=0
    )
    seed: int = setting(0, "seed of all draws; the same seed makes the same file anywhere", low=0)

    def __post_init__(self) -> None:
        validate(self)
        if self.val_share >= 1:
            raise UserError(f"--val-share {self.val_share} must be below 1")
        if self.partition_file and self.partition != "auto":
            raise UserError(f"--partition {self.partition} and --partition-file are two partitions; give one")

    def load(self) -> Source:
        """The images. Raises UserError where they are not as they should be."""
        raise NotImplementedError

    @property
    def scratch(self) -> Path:
        """The folder where decoded pixels may lie for a while."""
        return self.out.parent

    def split(self, source: Source) -> tuple[str, float | None, tuple[str, ...], list[Indices]]:
        """(the partition, β, the clients' names where they have some, each client's training rows)."""
        kind = self._kind(bool(source.site_names))
        labels, seed = source.train.labels, self.seed
        for f in dataclasses.fields(Sharding):
            kinds = BELONGS.get(f.name)
            if kinds and kind not in kinds and getattr(self, f.name) != f.default:
                raise UserError(
                    f"{flag(f.name)} is for the partition {' or '.join(kinds)}, and this is {kind}"
                )
        if kind == "file" and self.partition_file:
            if self.clients != Sharding.clients and not self.made_for_clients:
                raise UserError(f"--clients {self.clients}: --partition-file says how many; leave it away")
            names, parts = read_partition(self.partition_file, len(labels))
            return kind, None, names, parts
        if kind == "natural":
            if self.clients != Sharding.clients and not self.made_for_clients:
                sites = f"{len(source.site_names)} sites are {len(source.site_names)} clients"
                raise UserError(f"--clients {self.clients}: {sites}; leave it away, or --partition dirichlet")
            if source.train.sites is None:
                raise UserError(f"--partition natural: {source.name} has no sites; SITE/CLASS folders have")
            names = tuple(source.site_names) if any(source.site_names) else ()
            return kind, None, names, partitions.natural(source.train.sites, source.site_names)
        if kind == "iid":
            return kind, None, (), partitions.iid(labels, self.clients, seed, self.min_samples)
        if kind == "classes-per-client":
            parts = partitions.classes_per_client(labels, self.clients, self.ways, self.std, self.shots, seed)
            shots = f", {self.shots} shots" if self.shots else ""
            return f"{kind} {self.ways}±{self.std}{shots}", None, (), parts
        parts = partitions.dirichlet(labels, self.clients, self.beta, seed, self.min_samples)
        return kind, self.beta, (), parts

    def hold_out(self, source: Source, parts: list[Indices]) -> tuple[list[Indices], list[Indices]]:
        """(each client's rows for training, its rows for validation); the latter is [] without --val-share.

        A client's share is drawn from its own rows. UserError where a client would keep none for training.
        """
        if not self.val_share:
            return parts, []
        rows = np.concatenate(parts)
        owner_of_row = np.concatenate([np.full(len(part), i) for i, part in enumerate(parts)])
        groups = [source.train.groups[row] for row in rows] if source.train.groups else []
        kept, held = stratified_split(
            source.train.labels[rows], self.val_share, self.seed, owner_of_row, groups, "validation"
        )
        train, val = (
            [np.sort(rows[chosen[owner_of_row[chosen] == i]]) for i in range(len(parts))]
            for chosen in (kept, held)
        )
        if without := [i for i, part in enumerate(train) if not len(part)]:
            raise UserError(
                f"--val-share {self.val_share} leaves client {without[0]} nothing to train on; lower it"
            )
        if not len(held):
            raise UserError(
                f"--val-share {self.val_share} of {len(rows)} samples holds out none; a larger share"
            )
        return train, val

    def _kind(self, has_sites: bool) -> str:
        if self.partition_file:
            return "file"
        return ("natural" if has_sites else "dirichlet") if self.partition == "auto" else self.partition

    def made_by(self, command: str, has_sites: bool) -> str:
        """The command without paths and seed: it goes into the file, and so into its fingerprint.

        A partition file is named, without its folder: nothing else tells where the split is from.
        """
        kind = self._kind(has_sites)
        always = ["clients", "beta"] if kind == "dirichlet" else ["clients"]
        words = ["python -m data_prep", command]
        if self.partition_file:
            words += ["--partition-file", shlex.quote(self.partition_file.name)]
        for f in sorted(dataclasses.fields(self), key=lambda f: f.name not in always):
            value = getattr(self, f.name)
            if f.name in ("seed", "download", "unofficial") or isinstance(value, Path):
                continue
            if f.name == "clients" and kind in ("natural", "file") and not self.made_for_clients:
                continue
            if kind in BELONGS.get(f.name, (kind,)) and (f.name in always or value != f.default):
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [flag(f.name), *(shlex.quote(str(v)) for v in values)]
        return " ".join(words)
