"""The study command: a grid's runs, names and words, what is refused, what it costs, and how far it is."""

import json
import shlex
from pathlib import Path

import pytest

from fedproc_mpi.config import Config
from fedproc_mpi.studies import cost, progress, slurm
from fedproc_mpi.studies.plan import PlannedRun, Study, read_study, shipped
from fedproc_mpi.study import main as study

GRID = """
title = "Two by three"
presets = ["paper"]
flags = {rounds = 3, local_epochs = 1, moon = {mu = 2.0}}
[grid]
algorithm = ["fedavg", "moon"]
lr = [0.1, 0.01, 0.001]
[[variants]]
name = "plain"
[[variants]]
name = "unit"
flags = {normalize_z = true}
[smoke]
flags = {rounds = 1}
grid = {seed = [7]}
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return str(path)


def test_every_combination_is_a_run(tmp_path: Path) -> None:
    found = read_study(written(tmp_path, GRID), tmp_path / "out")
    assert found.title == "Two by three"
    assert len(found.runs) == 2 * 2 * 3
    by_name = {run.name: run.config for run in found.runs}
    config = by_name["unit-moon-lr0.01"]
    assert (config.algorithm, config.lr, config.normalize_z, config.rounds) == ("moon", 0.01, True, 3)
    assert config.options["mu"] == 2.0  # of MOON alone
    assert config.run_dir == str(tmp_path / "out" / "unit-moon-lr0.01")
    assert by_name["plain-fedavg-lr0.1"].normalize_z is False


def test_the_small_size(tmp_path: Path) -> None:
    found = read_study(written(tmp_path, GRID), smoke=True)
    assert [(run.name, run.config.seed, run.config.rounds) for run in found.runs] == [
        ("plain", 7, 1),
        ("unit", 7, 1),
    ]


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("smoke", [False, True])
def test_shipped_studies_can_be_read(name: str, smoke: bool) -> None:
    found = read_study(name, smoke=smoke)
    assert len(found.runs) > 2
    assert smoke or "core-hours" in cost.estimate(found)
    if smoke:  # no data but the embedded, and small
        assert all(Path(run.config.shards).name.startswith("digits_") for run in found.runs)
        assert sum(run.config.rounds * run.config.local_epochs for run in found.runs) <= 30


def test_ambiguities_are_single_switches_between_the_presets() -> None:
    found = {run.name: run.config.result_fields() for run in read_study("ambiguities").runs}
    paper, author = found["paper-seed0"], found["author_code-seed0"]
    switches = {key for key in paper if paper[key] != author[key]}
    seen = set()
    for name, fields in found.items():
        if name.endswith("seed0") and fields["algorithm"] == "fedproc" and fields != author:
            changed = {key for key in paper if paper[key] != fields[key]}
            assert len(changed) == (name != "paper-seed0"), name
            seen |= {key for key in changed if fields[key] == author[key]}
    assert seen == switches


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[gird]\nseed = [1]", "gird is no key of a study; did you mean grid?"),
        ("[grid]\nseed = 1", "[grid] seed must be a list of values"),
        ("[grid]\nsede = [1]", "--sede is no flag of fedproc; did you mean --seed?"),
        ("[grid]\nrounds = [1, 0]", "rounds0: --rounds must be at least 1, not 0"),
        ("[[variants]]\nflag = {}", "flag is no key of a variant; did you mean flags?"),
        ("[[variants]]\n[[variants]]", "two runs are called run"),
        ("[flags.mono]\nmu = 1", "did you mean moon?"),
        ("title = ", "not a TOML file"),
    ],
)
def test_what_is_refused(text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study([written(tmp_path, text)]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1


def test_a_study_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert study(["tabel2"]) == 2
    assert "tabel2: no such study; did you mean table2?" in capsys.readouterr().err
    assert study(["table2", "--max-parallel", "2"]) == 2
    assert "are for --slurm" in capsys.readouterr().err


def test_cost_by_hand() -> None:
    """1,000 samples, half drawn, 4 rounds of 3 epochs: 6,000 images; MOON's count 1.77 times."""
    runs = [
        PlannedRun(name, [], Config.create(algorithm=name, rounds=4, local_epochs=3, sample_rate=0.5))
        for name in ("fedavg", "moon")
    ]
    rate = {"samples": 1000, "images_per_core_second": 6000 / 3600, "measured": "here"}
    assert cost.estimate(Study("s", runs, rate)) == "about 2.8 core-hours, GPU-hours not measured (here)"
    assert (
        cost.remaining_seconds({"fedavg": [1, 3, 2], "moon": []}, {"fedavg": 2, "moon": 3}) == 2 * 2 + 3 * 2
    )
    assert cost.remaining_seconds({"fedavg": []}, {"fedavg": 2}) is None
    assert [cost.in_words(s) for s in (None, 20, 150, 7500)] == [
        "not known yet",
        "20 s",
        "2 min",
        "2 h 5 min",
    ]


def test_runs_go_on_and_failures_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shards: Path
) -> None:
    """One run diverges, one is done before: only what is unfinished is started again."""
    monkeypatch.chdir(tmp_path)
    text = f"""
flags = {{shards = {json.dumps(str(shards))}, rounds = 2, local_epochs = 1, algorithm = "fedavg"}}
grid = {{lr = [0.01, 1e30]}}
"""
    words = [written(tmp_path, text), "--out", "out", "--ranks", "1"]
    assert study([*words, "--plan"]) == 0
    assert "lr0.01: python -m fedproc_mpi --shards=" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert study(words) == 1
    said = capsys.readouterr()
    assert "study: lr0.01: done, final accuracy" in said.out
    assert "study: lr1e+30: failed, exit code 3" in said.out
    assert "lr1e+30 did not end well; out/logs has what they said" in said.err
    summary = (tmp_path / "out/lr0.01/summary.json").stat().st_mtime_ns
    assert study(words) == 1  # tried again, and the other left alone
    assert "study: lr0.01" not in capsys.readouterr().out
    assert (tmp_path / "out/lr0.01/summary.json").stat().st_mtime_ns == summary
    assert study([*words, "--status"]) == 0
    table = capsys.readouterr().out
    assert "1 done, 1 failed" in table
    rows = {line.split()[0]: line.split()[1:3] for line in table.splitlines() if line.startswith("lr")}
    assert rows == {"lr0.01": ["done", "2/2"], "lr1e+30": ["failed", "0/2"]}


def test_what_the_array_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sbatch is a script here that keeps its words: the unfinished runs, its options before the script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/study.slurm").write_text("")
    fake = tmp_path / "bin/sbatch"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "words"))}\necho "12;cluster"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    words = [written(tmp_path, "grid = {seed = [0, 1, 2]}"), "--out", "o u t", "--slurm"]
    out = tmp_path / "o u t"
    done = out / "seed1"
    done.mkdir(parents=True)
    for name in ("summary.json", "model.pt"):
        (done / name).write_text('{"model_sha256": "", "final_accuracy": 0.5}')
    assert study([*words, "--max-parallel", "2", "--sbatch", "--time=5 --ntasks=3"]) == 0
    assert "study: job 12: an array of 2 runs" in capsys.readouterr().out
    given = (tmp_path / "words").read_text().splitlines()
    assert given == ["--parsable", "--array=0,2%2", "--time=5", "--ntasks=3", "jobs/study.slurm", "o u t"]
    assert slurm.read_words(out, "2") == ["--seed=2", "--run-dir", "o u t/seed2"]
    assert study(["--words", "o u t", "0"]) == 0
    assert capsys.readouterr().out == "--seed=0\0--run-dir\0o u t/seed0\0"
    assert study(["--words", "o u t", "3"]) == 2
    assert "no task '3' of a study" in capsys.readouterr().err
    states = [progress.state_of(run, out) for run in read_study(words[0], out).runs]
    assert [state.what for state in states] == ["waiting", "done", "waiting"]
