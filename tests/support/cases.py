"""Configs that several files run: quick ones, with what is delicate in each algorithm."""

from fedproc_mpi import algorithms
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
CASES: dict[str, dict] = {
    **{name: {"algorithm": name} for name in algorithms.names()},
    "fedproto-two-kinds": {
        "algorithm": "fedproto",
        "client_models": "tests.support.small_models:Normed,tests.support.small_models:Wide",
    },
    "excluded": {"algorithm": POISON, "poisoned": "0,2", "on_diverged": "exclude", "sample_rate": 1.0},
}
