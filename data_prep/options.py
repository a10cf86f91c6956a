"""The command line: one dataclass a source; its fields are the flags."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from data_prep import partition
from data_prep.partition import Indices
from data_prep.sources import Source, digits
from fedproc_mpi.errors import UserError

Partition = Literal["auto", "dirichlet", "iid", "classes-per-client", "natural"]
BELONGS = {  # which partitions a flag is for
    "beta": ("dirichlet",),
    "ways": ("classes-per-client",),
    "std": ("classes-per-client",),
    "shots": ("classes-per-client",),
    "min_samples": ("dirichlet", "iid"),
}


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What every source has: the partition, the seed, the file."""

    out: Path
    """The shards file to write."""
    clients: int = 10
    """Clients m (natural: as many as there are sites)."""
    partition: Partition = "auto"
    """How samples go to clients; auto: natural where the data has sites, else dirichlet."""
    beta: float = 0.5
    """dirichlet: concentration; small is heterogeneous."""
    ways: int = 3
    """classes-per-client: mean number of classes a client."""
    std: int = 0
    """classes-per-client: each client has ways ± std classes, uniform."""
    shots: int = 0
    """classes-per-client: samples of each class a client; 0: its even share of the class."""
    min_samples: int = 10
    """dirichlet, iid: fewest samples a client."""
    seed: int = 0
    """Seed of everything that is drawn here; the same seed gives the same file content anywhere."""

    def load(self) -> Source:
        """The images. Raises UserError where they are not as they should be."""
        raise NotImplementedError

    @property
    def scratch(self) -> Path:
        """Where decoded pixels may lie for a while."""
        return self.out.parent

    def split(self, source: Source) -> tuple[str, float | None, list[Indices]]:
        """(the partition, β, each client's training rows)."""
        kind = self._kind(bool(source.site_names))
        labels, seed = source.train.labels, self.seed
        if self.clients < 1:
            raise UserError(f"--clients must be at least 1, not {self.clients}")
        for f in dataclasses.fields(Sharding):
            kinds = BELONGS.get(f.name)
            if kinds and kind not in kinds and getattr(self, f.name) != f.default:
                flag = f"--{f.name.replace('_', '-')}"
                raise UserError(f"{flag} is for the partition {' or '.join(kinds)}, and this is {kind}")
        if kind == "natural":
            if source.train.sites is None:
                raise UserError(f"--partition natural: {source.name} has no sites; SITE/CLASS folders have")
            return kind, None, partition.natural(source.train.sites, source.site_names)
        if kind == "iid":
            return kind, None, partition.iid(labels, self.clients, seed, self.min_samples)
        if kind == "classes-per-client":
            parts = partition.classes_per_client(labels, self.clients, self.ways, self.std, self.shots, seed)
            shots = f", {self.shots} shots" if self.shots else ""
            return f"{kind} {self.ways}±{self.std}{shots}", None, parts
        parts = partition.dirichlet(labels, self.clients, self.beta, seed, self.min_samples)
        return kind, self.beta, parts

    def _kind(self, has_sites: bool) -> str:
        return ("natural" if has_sites else "dirichlet") if self.partition == "auto" else self.partition

    def made_by(self, command: str, has_sites: bool) -> str:
        """The command without paths and seed: it goes into the file, and so into its fingerprint."""
        kind = self._kind(has_sites)
        always = ["clients", "beta"] if kind == "dirichlet" else ["clients"]
        words = ["python -m data_prep", command]
        for f in sorted(dataclasses.fields(self), key=lambda f: f.name not in always):
            value = getattr(self, f.name)
            if f.name in ("out", "seed", "download", "unofficial") or isinstance(value, Path):
                continue
            if f.name == "clients" and kind == "natural" and not isinstance(self, Synthetic):
                continue
            if kind in BELONGS.get(f.name, (kind,)) and (f.name in always or value != f.default):
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                words += [f"--{f.name.replace('_', '-')}", *(shlex.quote(str(v)) for v in values)]
        return " ".join(words)


@dataclass(frozen=True, kw_only=True)
class Digits(Sharding):
    """The embedded 8×8 digits."""

    def load(self) -> Source:
        return digits(self.seed)


@dataclass(frozen=True, kw_only=True)
class Official(Sharding):
    """A data set that torchvision knows."""

    root: Path = Path("data")
    """The folder that holds the data set's folder, as torchvision lays it out."""
    download: bool = False
    """Fetch it into --root when it is not there."""
    unofficial: bool = False
    """CIFAR: take batches whose MD5 is not the published one."""

    def _load(self, name: str) -> Source:
        from data_prep import official

        if self.download:
            official.download(name, self.root)
        if name in official.CIFAR:
            return official.cifar(name, self.root, self.unofficial)
        return official.idx(name, self.root)


class Cifar10(Official):
    """CIFAR-10: 50,000 + 10,000 colour images, 32×32, 10 classes."""

    def load(self) -> Source:
        return self._load("cifar10")


class Cifar100(Official):
    """CIFAR-100 with its 100 fine classes."""

    def load(self) -> Source:
        return self._load("cifar100")


class Mnist(Official):
    """MNIST: 60,000 + 10,000 grey images, 28×28."""

    def load(self) -> Source:
        return self._load("mnist")


class FashionMnist(Official):
    """Fashion-MNIST, 28×28."""

    def load(self) -> Source:
        return self._load("fashionmnist")


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(Sharding):
    """Tiny-ImageNet from its official folder, or a part of it."""

    root: Path = Path("data/tiny-imagenet-200")
    """The folder with train/ and val/."""
    wnids: tuple[str, ...] = ()
    """Only these classes."""
    skip_broken: bool = False
    """Leave out files that cannot be read, with a count."""

    def load(self) -> Source:
        from data_prep.tiny import tinyimagenet

        return tinyimagenet(self.root, self.wnids, self.scratch, self.skip_broken)


@dataclass(frozen=True, kw_only=True)
class Npz(Sharding):
    """A .npz with x_train, y_train, x_test, y_test and, if you like, class_names."""

    file: Path
    """The .npz file."""
    name: str = ""
    """Name of the data set (default: the file's); cifar10 and cifar100 choose their augmentation."""

    def load(self) -> Source:
        from data_prep.arrays import npz

        return npz(self.file, self.name or self.file.stem, self.scratch)


class MedMnist(Npz):
    """A MedMNIST 2D .npz as shipped (train + val for training)."""

    def load(self) -> Source:
        from data_prep.arrays import medmnist

        return medmnist(self.file, self.name or self.file.stem, self.scratch)


@dataclass(frozen=True, kw_only=True)
class Folders(Sharding):
    """Your own images: ROOT/SITE/CLASS/*.png (one client a site) or ROOT/CLASS/*.png."""

    root: Path
    """The folder of site folders, or of class folders."""
    test_root: Path | None = None
    """A folder of the same layout with the test images (default: hold out --test-share)."""
    test_share: float = 0.2
    """Share of each class that becomes test set, drawn by the seed."""
    image_size: int = 64
    """The shorter side is resized to this (bilinear, antialiased), then the middle square is cut out."""
    channels: Literal[1, 3] = 3
    """3: RGB, 1: grey."""
    name: str = ""
    """Name of the data set (default: the folder's)."""
    skip_broken: bool = False
    """Leave out files that cannot be read, with a count."""

    def load(self) -> Source:
        from data_prep.folders import folders

        name = self.name or self.root.resolve().name
        return folders(
            self.root,
            self.test_root,
            name,
            self.image_size,
            self.channels,
            self.test_share,
            self.seed,
            self.scratch,
            self.skip_broken,
        )


@dataclass(frozen=True, kw_only=True)
class Synthetic(Sharding):
    """Generated images, for scalability studies (by default `samples` a client)."""

    classes: int = 10
    """Classes K."""
    image_size: int = 32
    """Height and width."""
    channels: Literal[1, 3] = 3
    """Colour or grey."""
    samples: int = 100
    """Training samples a client (other partitions: on average)."""
    test_samples: int = 1000
    """Samples of the test set."""

    def load(self) -> Source:
        from data_prep.synthetic import synthetic

        size = (self.image_size, self.channels, self.samples, self.test_samples)
        return synthetic(self.clients, self.classes, *size, self.seed)


@dataclass(frozen=True)
class Inspect:
    """Show a shards file: clients, classes, sizes; with --plot a picture."""

    file: tyro.conf.Positional[Path]
    """The shards file."""
    plot: Path | None = None
    """Write a picture (client × class bubbles, sample images, pixel values) to this .png."""


@dataclass(frozen=True)
class Verify:
    """Check every checksum, label and offset of a shards file."""

    file: tyro.conf.Positional[Path]
    """The shards file."""


SOURCES = {
    "digits": Digits,
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "mnist": Mnist,
    "fashionmnist": FashionMnist,
    "tinyimagenet": TinyImageNet,
    "medmnist": MedMnist,
    "npz": Npz,
    "folders": Folders,
    "synthetic": Synthetic,
}
COMMANDS = {**SOURCES, "inspect": Inspect, "verify": Verify}


def command_type(name: str) -> type:
    """A command's dataclass; UserError where there is none of that name."""
    if name not in COMMANDS:
        raise UserError(f"{name}: no such source or command; known: {', '.join(COMMANDS)}")
    return COMMANDS[name]
