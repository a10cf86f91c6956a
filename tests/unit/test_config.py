"""Flags, presets, and what is said when they are wrong: one line that names the mistake and the remedy."""

import json
import re
from pathlib import Path

import pytest

from fedproc_mpi import algorithms
from fedproc_mpi.cli import parse
from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag, settings_of


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["--local-epochs", "-1"], "--local-epochs must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--sample-rate", "0"], r"--sample-rate must be in \(0, 1\], not 0"),
        (["--sample-rate", "1.5"], r"--sample-rate must be in \(0, 1\], not 1.5"),
        (["--sample-rate", "nan"], r"--sample-rate must be in \(0, 1\]"),
        (["--lr", "0"], "--lr must be above 0"),
        (["--lr", "inf"], "--lr must be above 0"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--lr", "abc"], "^--lr must be a number, not 'abc'$"),
        (["--rounds", "2.5"], "--rounds"),
        (["--rounds"], "--rounds"),
        (["--algorithm", "fedprocs"], "did you mean fedproc"),
        (["--algorithm", "missing.py"], "no such file"),
        (["--preset", "papr"], "did you mean paper"),
        (["--preset", "missing.toml"], "cannot read it"),
        (["--preset"], "^--preset needs a value$"),
        (["--temperatur", "2"], "did you mean --temperature"),
        (["--temperature", "0"], "--temperature must be above 0"),
        (["--alpha-schedule", "lin"], "linear"),
        (["--algorithm", "fedavg", "--temperature", "2"], "--temperature is no flag of fedavg"),
        (["--roundz", "3"], r"^--roundz is no flag of fedproc; did you mean --rounds\?$"),
        (["-rounds", "3"], r"-rounds is no flag of fedproc; did you mean --rounds\?"),
        (["rounds", "3"], r"rounds is no flag of fedproc; did you mean --rounds\?"),
        (["--resume", "yes"], "^yes: no flag stands before this word"),
        (["--resume=3"], "takes no value, not '3'"),
        (["--round", "3"], r"--round is no flag .*--rounds"),  # flags are never shortened
        (["--rounds", "--lr", "3"], "^--rounds needs a value$"),
        (["--algorithm"], "^--algorithm needs a value$"),
        (["--preset", "paper", "--preset"], "^--preset needs a value$"),
        (["--lr", "-1e-3"], "--lr must be above 0, not -0.001"),
        (["--rounds", "2.5"], "^--rounds must be a whole number, not 2.5$"),
        (["--rounds", "many"], "^--rounds must be a number, not 'many'$"),
        (["--lr="], "^--lr must be a number, not ''$"),
        (["--norm", "foo"], "^--norm must be one of batch, group, not 'foo'$"),
        (["--alpha", "2"], r"--alpha must be in \[0, 1\]"),
    ],
)
def test_wrong_flags(flags: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse(flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ([], {}),
        (["--lr=0.1"], {"lr": 0.1}),
        (["--lr", "1", "--lr", "2"], {"lr": 2.0}),  # the last one wins
        (["--local_epochs", "2", "--batch_size=3"], {"local_epochs": 2, "batch_size": 3}),
        (["--no-channels-last", "--normalize_z"], {"channels_last": False, "normalize_z": True}),
        (["--resume", "--no-resume"], {"resume": False}),
        (["--rounds", "1e2"], {"rounds": 100}),
        (["--run-dir=-x_y"], {"run_dir": "-x_y"}),
    ],
)
def test_ways_to_type_flags(flags: list[str], wanted: dict[str, object]) -> None:
    assert parse(flags).flat() == parse([]).flat() | wanted


def test_whole_numbers_get_their_settings_kind() -> None:
    config = Config(rounds=3.0, lr=1)  # type: ignore[arg-type]
    assert (config.rounds, type(config.rounds), type(config.lr)) == (3, int, float)


def test_presets_merge_later_wins_flags_win(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("lr = 0.5\nrounds = 7\n[fedproc]\ntemperature = 0.1\n[fedavg]\n")
    second.write_text("rounds = 8\nbatch_size = 3\nlr = 1\n")
    presets = ["--preset", str(first), "--preset", str(second)]
    config = parse([*presets, "--batch-size", "4"])
    assert (config.lr, config.rounds, config.batch_size) == (1.0, 8, 4)
    assert config.options["temperature"] == 0.1
    # another algorithm's table is not its business
    assert "temperature" not in parse([*presets, "--algorithm", "fedavg"]).options
    second.write_text('algorithm = "fedavg"')
    assert parse(presets).algorithm == "fedavg"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roundz = 3", "roundz is no key of fedproc; did you mean rounds"),
        ("[fedprocs]\nmu = 1", r"\[fedprocs\] is no algorithm; did you mean fedproc"),
        ("[fedproc]\ntemperatur = 3", "did you mean temperature"),
        ("rounds = ", "not a TOML file"),
        ('rounds = "many"', "--rounds must be a number"),
        ("rounds = true", "--rounds must be a number"),
        ('rounds = "3"', "^--rounds must be a number, not '3'$"),
        ("lr = true", "^--lr must be a number, not True$"),
        ("rounds = 2.5", "^--rounds must be a whole number, not 2.5$"),
        ("model = 4", "^--model must be a string, not 4$"),
        ('resume = "yes"', "^--resume must be true or false, not 'yes'$"),
        ("norm = 3", "^--norm must be one of batch, group, not 3$"),
        ("lr = [1]", "^--lr must be a number"),
    ],
)
def test_wrong_presets(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        parse(["--preset", str(path)])


def test_a_runs_config_json_alone_gives_the_config_back(tmp_path: Path) -> None:
    config = parse(["--algorithm", "fedproc", "--lr", "0.3", "--temperature", "0.5", "--seed", "9"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.flat() | {"data": {"x": 1}, "environment": {"torch": "0"}}))
    assert parse(["--preset", str(path)]) == config


def test_help_lists_the_algorithms_and_the_chosen_ones_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        parse(["--help"])
    shown = capsys.readouterr().out
    assert not leaving.value.code
    assert "FedAvg: local SGD" in shown
    for name in algorithms.names():
        what = (algorithms.find(name).__doc__ or "").split(":")[0]
        assert re.search(rf"\b{name} +{what}: ", shown), name
    for name in Config.create().result_fields():
        assert f"--{name.replace('_', '-')}" in shown
    assert "--temperature" in shown


def test_help_shows_each_flag_with_its_default_and_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in algorithms.names():
        with pytest.raises(SystemExit):
            parse(["--algorithm", name, "--preset", "cifar10_m10", "--help"])
        _, _, shown = capsys.readouterr().out.partition("flags of every algorithm:")
        assert max(map(len, shown.splitlines())) <= 80
        for key, field in (settings_of(Config) | settings_of(algorithms.find(name))).items():
            # from the flag's line to the next flag's, without the folding
            entry = re.search(rf"\n  {flag(key)}[ ,].*?\(default: .*?\)\n", shown, re.S)
            assert entry, key
            words = re.sub(r"\s+", "", entry[0])
            assert re.sub(r"\s+", "", field.metadata["help"]) in words, key
    assert "(default: 64)" in re.search(r"--batch-size .*?--", shown, re.S)[0]  # the preset's


def test_an_algorithm_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n"
        "from fedproc_mpi.algorithms.fedavg import FedAvg\n"
        "from fedproc_mpi.flags import setting\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    '''Mine.'''\n"
        "    strength: float = setting(2.0, 'how much')\n"
    )
    config = parse(["--algorithm", str(path), "--strength", "3"])
    assert config.options == {"strength": 3.0}
    with pytest.raises(UserError, match=r"--strenth is no flag of \S*mine.py; did you mean --strength\?"):
        parse(["--algorithm", str(path), "--strenth", "3"])
    with pytest.raises(SystemExit) as leaving:
        parse(["--algorithm", str(path), "--help"])
    assert not leaving.value.code
    assert "how much (default: 2.0)" in capsys.readouterr().out
    path.write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match="ModuleNotFoundError"):
        parse(["--algorithm", str(path)])


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from fedproc_mpi.algorithms.fedavg import FedAvg
from fedproc_mpi.flags import setting
open({trace!r}, "a").write("x")
@dataclass(frozen=True)
class Mine(FedAvg):
    '''Mine: one.'''
    strength: float = setting({default}, "how strong")
"""


def test_a_users_file_is_executed_once_and_again_when_it_changed(tmp_path: Path) -> None:
    mine, trace = tmp_path / "mine.py", tmp_path / "trace"
    mine.write_text(OWN.format(trace=str(trace), default=1.0))
    config = parse(["--algorithm", str(mine), "--strength", "2"])
    assert algorithms.build(config.algorithm, config.options).options() == {"strength": 2.0}
    assert trace.read_text() == "x"
    mine.write_text(OWN.format(trace=str(trace), default=3.0))
    assert parse(["--algorithm", str(mine)]).options == {"strength": 3.0}
    assert trace.read_text() == "xx"


def test_presets_as_editors_and_people_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("\ufeffrounds = 3 # β\n[moon]\nmu = 2\n", encoding="utf-8")
    config = parse(["--preset", str(path), "--algorithm", "moon"])
    assert (config.rounds, config.options["mu"]) == (3, 2)
    path.write_text("moon = 3\n")
    for name in ("moon", "fedavg"):
        with pytest.raises(UserError, match=r"moon is an algorithm: write a table, \[moon\]"):
            parse(["--preset", str(path), "--algorithm", name])


def test_alpha_without_the_schedule_that_reads_it() -> None:
    with pytest.raises(UserError, match=r"--alpha 0\.3 is for --alpha-schedule constant, and this is linear"):
        parse(["--alpha", "0.3"])
    assert parse(["--alpha", "0.3", "--alpha-schedule", "constant"]).options["alpha"] == 0.3
