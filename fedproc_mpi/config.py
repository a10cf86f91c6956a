"""The configuration: one frozen dataclass whose fields are the flags, the presets' keys and the docs.

A field is either *result* (it can change the model; `--resume` compares it) or *execution* (free to
change between a run and its resumption). An algorithm's own hyperparameters are the fields of its
dataclass (`algorithms/`); here they travel in `options`.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import nearest, setting, settings_of, validate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PRESET_DIR = Path(__file__).parent / "presets"
RECORDED = ("data", "files", "environment")  # what config.json holds besides the config
DEFAULT_LR = 0.03  # of most algorithms, on the embedded digits
ADAMW_LR = 0.001  # where --lr is not given; torch's own
DIGITS_SHARDS = "shards/digits_m10.h5"


@dataclass(frozen=True)
class Config:
    """What a run depends on. `Config.create(algorithm="fedproc", temperature=0.5)` sorts flat keys."""

    algorithm: str = setting("fedproc", "an algorithm's name, or path/to/mine.py")
    model: str = setting(
        "auto", "a model's name; your own module:Class or path/to/mine.py:Class; auto: chosen by image size"
    )
    norm: Literal["batch", "group"] = setting(
        "batch", "normalisation layers of the ResNets; group: GroupNorm, which averages well"
    )
    stem: Literal["cifar", "imagenet"] = setting(
        "cifar", "first layers of the ResNets; imagenet: 7×7 with stride 2 and a maxpool, for large images"
    )
    init: str = setting("", "a file of initial weights (state_dict); empty: drawn from --seed")
    init_part: Literal["all", "encoder"] = setting(
        "all", "what --init gives; encoder: what fits of it, as a torchvision ResNet's; the rest is drawn"
    )
    shards: str = setting(DIGITS_SHARDS, "the HDF5 shards file; the default one is made when it is missing")
    rounds: int = setting(15, "communication rounds T", "digits; paper: 100, Tiny-ImageNet 20", low=1)
    local_epochs: int = setting(4, "local epochs E per round", "digits; paper: 10", low=1)
    batch_size: int = setting(16, "samples per batch", "digits; paper: 64", low=1)
    lr: float | None = setting(
        None, "learning rate; none: SGD 0.03, scaffold 0.01, AdamW 0.001", "digits; paper: 0.01", above=0
    )
    lr_schedule: Literal["constant", "cosine", "step"] = setting(
        "constant", "learning rate over the rounds; cosine: to 0; step: a tenth at 1/2, again at 3/4"
    )
    warmup: int = setting(0, "first rounds, in which the learning rate rises in even steps", low=0)
    optimizer: Literal["sgd", "adamw"] = setting("sgd", "of the clients; it starts anew every round")
    momentum: float = setting(0.9, "momentum of SGD", "MOON §4.1", low=0)
    weight_decay: float = setting(1e-5, "weight decay", "MOON §4.1", low=0)
    clip_norm: float = setting(0.0, "longest gradient; a longer one is scaled down to it; 0: any", low=0)
    label_smoothing: float = setting(
        0.0, "share of the label that cross-entropy spreads over all classes", low=0, high=1
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none", "weights of the classes in cross-entropy; balanced: by each client's own counts"
    )
    sample_rate: float = setting(
        1.0, "share of the clients drawn each round (gamma)", "MOON §4.4", above=0, high=1
    )
    seed: int = setting(0, "seed of everything that is drawn during the run", low=0)
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
    patience: int = setting(
        0, "end the run when the validation accuracy was not better for so many rounds; 0: never", low=0
    )
    threads: int = setting(1, "intra-op threads per rank; changes the last bits of convolutions", low=1)
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
    tensorboard: bool = setting(
        False, "write the rounds' figures for TensorBoard as well, into the run directory", execution=True
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints", low=1, execution=True)
    eval_every: int = setting(1, "rounds between evaluations (the last is always)", low=1, execution=True)
    data_cache_mb: int = setting(
        1024, "how much client data a rank keeps resident, MB", low=0, execution=True
    )
    client_cache_mb: int = setting(
        1024, "how much of what clients keep between rounds a rank holds in memory, MB", low=0, execution=True
    )
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UserError for a wrong value. The algorithm checks `options`."""
        validate(self)
        if self.warmup >= self.rounds:
            raise UserError(f"--warmup {self.warmup} must be below --rounds {self.rounds}")
        if self.optimizer != "sgd" and self.momentum != FIELD_DEFAULTS["momentum"]:
            raise UserError(
                f"--momentum {self.momentum} is for --optimizer sgd, and this is {self.optimizer}"
            )
        if self.init_part != "all" and not self.init:
            raise UserError(f"--init-part {self.init_part} needs --init FILE")

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


FIELDS = tuple(settings_of(Config))
EXECUTION_FIELDS = tuple(name for name, f in settings_of(Config).items() if f.metadata["execution"])
FIELD_DEFAULTS = {name: f.default for name, f in settings_of(Config).items()}


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
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"--preset {name}: cannot read it: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--preset {name}: not a TOML file: {error}") from error


def merge_presets(names: Sequence[str], algorithm: str | None, known: Iterable[str]) -> dict[str, Any]:
    """Flat keys of the presets, later ones winning; tables of other algorithms are left out.

    algorithm: the one that a flag chose; None: the presets' own choice, or the default. known: the
    algorithms' names, whose tables are allowed.
    """
    known = {*known, Path(algorithm or "").stem}
    presets = [load_preset(name) for name in names]
    named = [str(preset["algorithm"]) for preset in presets if "algorithm" in preset]
    chosen = algorithm or (named[-1] if named else str(FIELD_DEFAULTS["algorithm"]))
    flat: dict[str, Any] = {}
    for name, preset in zip(names, presets, strict=True):
        if no_tables := [k for k in known if k in preset and not isinstance(preset[k], dict)]:
            raise UserError(
                f"--preset {name}: {no_tables[0]} is an algorithm: write a table, [{no_tables[0]}]"
            )
        flat.update({k: v for k, v in preset.items() if not (isinstance(v, dict) and k in known)})
        flat.update(preset.get(Path(chosen).stem, {}))
    return {**flat, "algorithm": chosen}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; UserError where it is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object")
    return value
