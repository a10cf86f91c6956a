"""Configs that several files run: quick ones, with what is delicate in each algorithm; and wrong ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py

from fedproc_mpi import algorithms
from fedproc_mpi.federated import Result
from tests.support.processes import ROOT

POISON = str(ROOT / "tests" / "support" / "poison.py")
SMALL = {
    "model": "tests.support.small_models:Normed",
    "rounds": 3,
    "local_epochs": 1,
    "sample_rate": 0.6,
    "checkpoint_every": 2,
    "eval_every": 2,
}
VALIDATED = "validated.h5"  # shards with a validation set, in the folder that a test works in
QUICK = {"rounds": 3, "local_epochs": 1, "batch_size": 32}
# Every algorithm with sampling and BatchNorm, two kinds of personal models, excluded clients.
ALGORITHMS: dict[str, dict] = {
    **{name: {**SMALL, "algorithm": name} for name in algorithms.names()},
    "fedproto-two-kinds": {
        **SMALL,
        "algorithm": "fedproto",
        "client_models": "tests.support.small_models:Normed,tests.support.small_models:Wide",
    },
    "excluded": {
        **SMALL,
        "algorithm": POISON,
        "poisoned": "0,2",
        "on_diverged": "exclude",
        "sample_rate": 1.0,
    },
}
VARIANTS: dict[str, dict] = {
    "everyone": {**QUICK, "algorithm": "fedproc"},
    "everyone by fedavg": {**QUICK, "algorithm": "fedavg"},
    # 2 of 5 clients a round: with 5 ranks two client ranks have nothing to do
    "two of five": {**QUICK, "algorithm": "fedproc", "sample_rate": 0.4},
    "author's code": {
        **QUICK,
        "algorithm": "fedproc",
        "normalize_z": True,
        "prototype_average": "count",
        "class_means": "train",
        "absent_class": "zeros",
        "sample_rate": 0.4,
    },
    # With BatchNorm, whose statistics the pass for the class means moves.
    "author's code, mended": {
        **SMALL,
        "algorithm": "fedproc",
        "normalize_z": False,
        "prototype_init": "zeros",
        "first_round": "cross_entropy",
        "prototype_average": "count",
        "unseen_class": "zero",
        "class_means": "train_bn",
        "means_of": "unit",
    },
    "dropout": {**QUICK, "algorithm": "fedavg", "model": "tests.support.small_models:WithBatchNorm"},
    # Of 12 rounds some are left: every rank has to end at the same one, and MOON's clients keep their models.
    "early stopping": {
        **QUICK,
        "shards": VALIDATED,
        "algorithm": "moon",
        "rounds": 12,
        "patience": 2,
        "eval_every": 2,
        "optimizer": "adamw",
        "lr": 0.02,
        "lr_schedule": "cosine",
        "warmup": 2,
        "clip_norm": 0.5,
        "label_smoothing": 0.1,
        "class_weights": "balanced",
    },
}
CASES = ALGORITHMS | VARIANTS
TIMES = ("seconds", "round_seconds", "imbalance")  # of a round's line


def outcome(result: Result) -> dict[str, Any]:
    """What must be the same however a config is run: the hash, and every figure but those of time."""
    rounds = [{key: value for key, value in line.items() if key not in TIMES} for line in result.metrics]
    facts = {key: result.summary[key] for key in ("model_sha256", "final_accuracy")}
    return json.loads(json.dumps({**facts, "rounds": rounds}))


def wrong_input(folder: Path, shards: Path, transport: str) -> dict[tuple[str, ...], str]:
    """Command lines with a mistake, and words that name it; makes damaged.h5 in the folder.

    transport: one that is not to be had as the job is started.
    """
    damaged = Path(shutil.copy(shards, folder / "damaged.h5"))
    with h5py.File(damaged, "r+") as file:
        row = int(file["train/offsets"][3])
        file["train/images"][row, 0, 0, 0] = 255 - file["train/images"][row, 0, 0, 0]
    return {
        ("--shards", "damaged.h5"): "client 3: checksum mismatch",
        ("--shards", "nope.h5"): "no such shards file",
        ("--shards", str(shards), "--sample-rate", "0.01"): "draws none",
        ("--roundz", "3"): "did you mean --rounds",
        ("--transport", transport): "--transport",
        ("--device", "cuda", "--shards", str(shards)): "torch sees no GPU on",
    }


def poisoned(shards: Path, run_dir: Path, clients: str, how: str) -> list[str]:
    """A command line in which these clients diverge in round 1; how: --on-diverged."""
    flags = {"algorithm": POISON, "poisoned": clients, "on-diverged": how, "shards": str(shards)}
    flags |= {"run-dir": str(run_dir), "rounds": "3", "local-epochs": "1"}
    return [word for name, value in flags.items() for word in (f"--{name}", value)]
