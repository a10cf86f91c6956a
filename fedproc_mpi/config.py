"""The configuration: one frozen dataclass whose fields are the flags, the presets' keys and the docs.

A field is either *result* (it can change the model; `--resume` compares it) or *execution* (free to
change between a run and its resumption). An algorithm's own hyperparameters are the fields of its
dataclass (`algorithms/`); here they travel in `options`.
"""

import dataclasses
import difflib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedproc_mpi.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESET_DIR = Path(__file__).parent / "presets"
RECORDED = ("data", "files", "environment")  # what config.json holds besides the config
DIGITS_SHARDS = "shards/digits_m10.h5"


def setting(default: Any, help: str, source: str = "", execution: bool = False) -> Any:
    """A dataclass field with the text that `--help` and the docs show."""
    text = f"{help} [{source}]" if source else help
    return field(default=default, metadata={"help": text, "execution": execution})


@dataclass(frozen=True)
class Config:
    """What a run depends on. `Config.create(algorithm="fedproc", temperature=0.5)` sorts flat keys."""

    algorithm: str = setting("fedproc", "an algorithm's name, or path/to/mine.py")
    model: str = setting("auto", "a model's name, module:Class of your own, or auto: chosen by image size")
    norm: Literal["batch", "group"] = setting(
        "batch", "normalisation layers of the ResNets; group: GroupNorm, which averages well"
    )
    init: str = setting("", "a file of initial weights (state_dict); empty: drawn from --seed")
    shards: str = setting(DIGITS_SHARDS, "the HDF5 shards file; the default one is made when it is missing")
    rounds: int = setting(15, "communication rounds T", "digits; paper: 100, Tiny-ImageNet 20")
    local_epochs: int = setting(4, "local epochs E a round", "digits; paper: 10")
    batch_size: int = setting(16, "samples a batch", "digits; paper: 64")
    lr: float = setting(0.03, "learning rate of SGD, constant", "digits; paper: 0.01")
    momentum: float = setting(0.9, "momentum of SGD", "MOON §4.1")
    weight_decay: float = setting(1e-5, "weight decay of SGD", "MOON §4.1")
    sample_rate: float = setting(1.0, "share of the clients drawn each round (gamma)", "MOON §4.4")
    seed: int = setting(0, "seed of everything that is drawn during the run")
    normalize_z: bool = setting(False, "L2-normalised z into the classifier as well", "author's code")
    last_batch: Literal["keep", "drop"] = setting(
        "keep", "an epoch's short last batch; drop: unless it is the only one", "author's code drops"
    )
    augment: Literal["auto", "none", "cifar10", "cifar100"] = setting(
        "auto", "training augmentation; auto: by the shards' data set"
    )
    on_diverged: Literal["stop", "exclude"] = setting(
        "stop", "a client that diverges: end with exit 3, or leave it out of its round's sums"
    )
    threads: int = setting(1, "intra-op threads a rank; changes the last bits of convolutions")
    channels_last: bool = setting(True, "memory format of images and convolution weights")
    precision: Literal["fp32", "tf32", "bf16"] = setting("fp32", "arithmetic of training and evaluation")
    deterministic: bool = setting(
        True, "kernels that give the same bits each time; off: those that are faster on GPUs, and no promise"
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "where clients train; auto: on GPUs where torch sees any"
    )
    server_gpu: bool = setting(False, "rank 0 takes a GPU as well, a free one if there is", execution=True)
    transport: Literal["auto", "mpi", "torch", "serial"] = setting(
        "auto",
        "how ranks talk; torch: NCCL on GPUs, gloo on CPUs; auto: torch where each client rank has its own "
        "GPU, else MPI; serial without a launcher",
        execution=True,
    )
    cuda_aware: bool = setting(
        False, "hand GPU memory to MPI directly, after a probe; else through host memory", execution=True
    )
    shards_copy: str = setting("", "a copy of --shards on a faster disk, read in its place", execution=True)
    run_dir: str = setting("", "the run's directory; empty: a new one under runs/", execution=True)
    resume: bool = setting(
        False, "go on from the last checkpoint of --run-dir, or of the newest such run", execution=True
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints", execution=True)
    eval_every: int = setting(1, "rounds between evaluations (the last is always)", execution=True)
    data_cache_mb: int = setting(1024, "how much client data a rank keeps resident, MB", execution=True)
    client_cache_mb: int = setting(
        1024, "how much of what clients keep between rounds a rank holds in memory, MB", execution=True
    )
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "", "execution": False})

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            kind = type(f.default)
            value = getattr(self, f.name)
            if kind in (int, float) and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise UserError(f"{flag(f.name)} must be a number, not {value!r}")
            if kind is int and value != int(value):
                raise UserError(f"{flag(f.name)} must be a whole number, not {value!r}")
            if kind in (bool, str) and not isinstance(value, kind):
                raise UserError(f"{flag(f.name)} must be a {kind.__name__}, not {value!r}")
            choices = getattr(f.type, "__args__", None) if f.name != "options" else None
            if choices and value not in choices:
                raise UserError(f"{flag(f.name)} must be one of {', '.join(choices)}, not {value!r}")
        for name in ("rounds", "local_epochs", "batch_size", "threads", "checkpoint_every", "eval_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{flag(name)} must be at least 1, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "seed", "data_cache_mb", "client_cache_mb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{flag(name)} must be at least 0, not {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be above 0, not {self.lr}")
        if not 0 < self.sample_rate <= 1:
            raise UserError(f"--sample-rate must be in (0, 1], not {self.sample_rate}")

    @classmethod
    def create(cls, **flat: Any) -> "Config":
        """A config from flat keys: those that are not fields here are the algorithm's options."""
        own = {k: v for k, v in flat.items() if k in FIELDS}
        return cls(**own, options={k: v for k, v in flat.items() if k not in FIELDS})

    def flat(self) -> dict[str, Any]:
        """All keys in one dictionary, the algorithm's options after the fields."""
        own = {name: getattr(self, name) for name in FIELDS}
        return {**own, **self.options}

    def result_fields(self) -> dict[str, Any]:
        """The keys that can change the model. The shards count by fingerprint, not by path."""
        return {k: v for k, v in self.flat().items() if k != "shards" and k not in EXECUTION_FIELDS}

    def with_options(self, options: Mapping[str, Any]) -> "Config":
        """The same config with the algorithm's options complete."""
        return dataclasses.replace(self, options=dict(options))


FIELDS = tuple(f.name for f in dataclasses.fields(Config) if f.name != "options")
EXECUTION_FIELDS = tuple(f.name for f in dataclasses.fields(Config) if f.metadata["execution"])


def flag(name: str) -> str:
    """`local_epochs` → `--local-epochs`."""
    return "--" + name.replace("_", "-")


def nearest(word: str, known: Iterable[str]) -> str:
    """', did you mean X?' where a known name is near, else the list of the known ones."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def load_preset(name: str) -> dict[str, Any]:
    """The keys of a built-in preset, a TOML file, or a run's config.json, which alone reproduces the run.

    Tables are for the algorithm of that name. Raises UserError when there is no such preset.
    """
    built_in = {p.stem: p for p in PRESET_DIR.glob("*.toml")}
    path = built_in.get(name, Path(name))
    if path.suffix == ".json":
        return {k: v for k, v in read_json(path).items() if k not in RECORDED}
    if name not in built_in and path.suffix != ".toml":
        raise UserError(f"--preset {name}: no such preset; {nearest(name, built_in)} (or a FILE.toml)")
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"--preset {name}: cannot read it: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--preset {name}: not a TOML file: {error}") from error


def merge_presets(names: Iterable[str], algorithm: str | None, known: Iterable[str]) -> dict[str, Any]:
    """Flat keys of the presets, later ones winning; tables of other algorithms are left out.

    algorithm: the one that a flag chose; None: the presets' own choice, or the default. known: the
    algorithms' names, whose tables are allowed.
    """
    known = {*known, Path(algorithm or "").stem}
    presets = [load_preset(name) for name in names]
    named = [str(preset["algorithm"]) for preset in presets if "algorithm" in preset]
    chosen = algorithm or (named[-1] if named else str(FIELD_DEFAULTS["algorithm"]))
    flat: dict[str, Any] = {}
    for preset in presets:
        flat.update({k: v for k, v in preset.items() if not (isinstance(v, dict) and k in known)})
        flat.update(preset.get(Path(chosen).stem, {}))
    return {**flat, "algorithm": chosen}


FIELD_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Config)}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; UserError where it is missing or broken."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object")
    return value
