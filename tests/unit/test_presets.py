"""The data sets' presets: complete, and each with the command that makes its shards."""

import re
import shlex
from pathlib import Path

import pytest

from data_prep.cli import read_sharding, require
from fedproc_mpi import algorithms, cli
from fedproc_mpi.config import PRESET_DIR, Config, load_preset, merge_presets
from fedproc_mpi.errors import UserError

PRESETS = ["cifar10_m10", "cifar100_m10", "cifar100_m50", "cifar100_m100", "tinyimagenet_m10"]
KEYS = {
    "shards",
    "model",
    "augment",
    "rounds",
    "local_epochs",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_complete_and_names_its_shards(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preset = load_preset(name)
    assert set(preset) >= KEYS | {"sample_rate", "moon", "fedprox"}
    config = cli.parse(["--preset", name])
    assert config.shards == preset["shards"] == f"shards/{name}.h5"
    assert (config.local_epochs, config.batch_size, config.lr) == (10, 64, 0.01)
    command = re.search(r"python -m data_prep .*", (PRESET_DIR / f"{name}.toml").read_text()).group()
    with pytest.raises(UserError, match=f"^shards/{name}.h5: no such shards file; ") as told:
        require(Path(config.shards))
    assert f"`{command}`" in str(told.value)
    words = shlex.split(command)[3:]
    options = read_sharding(words[0], words[1:])
    assert (options.beta, options.seed, options.partition) == (0.5, 0, "auto")
    assert name.endswith(f"_m{options.clients}")
    assert str(options.out) == config.shards


@pytest.mark.parametrize(
    ("name", "rounds", "rate", "moon", "fedprox"),
    [
        ("cifar10_m10", 100, 1.0, 5, 0.01),
        ("cifar100_m10", 100, 1.0, 1, 0.001),
        ("cifar100_m50", 200, 1.0, 10, 0.001),
        ("cifar100_m100", 500, 0.2, 10, 0.001),
        ("tinyimagenet_m10", 20, 1.0, 1, 0.001),
    ],
)
def test_values_of_the_papers(name, rounds, rate, moon, fedprox):
    fedproc = merge_presets([name], "fedproc", algorithms.names())
    assert (fedproc["rounds"], fedproc["sample_rate"]) == (rounds, rate)
    assert "mu" not in fedproc
    assert merge_presets([name], "moon", algorithms.names())["mu"] == moon
    assert merge_presets([name], "fedprox", algorithms.names())["mu"] == fedprox
    solo = merge_presets([name], "solo", algorithms.names())
    assert solo["rounds"] * solo["local_epochs"] == 300  # each client's epochs, MOON section 4.1
    assert solo["sample_rate"] == 1.0
    assert isinstance(Config.create(**fedproc), Config)
