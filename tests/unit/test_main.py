"""The command line, in this process: wrong input, and what is no launcher's variable."""

from pathlib import Path

import pytest

from fedproc_mpi.__main__ import main
from tests.support.cases import wrong_input


def test_wrong_input_is_one_line_and_exit_2(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = wrong_input(tmp_path, shards, transport="mpi")
    wrong["--transport", "torch", "--shards", str(shards)] = "mpirun -n 2, or more"
    before = sorted(tmp_path.iterdir())
    for words, told in wrong.items():
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("fedproc_mpi: ")
        assert told in said
        assert said.count("\n") == 1, said
    assert sorted(tmp_path.iterdir()) == before


def test_a_batch_shells_slurm_ntasks_is_no_step(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "21")
    flags = ["--shards", str(shards), "--rounds", "1", "--local-epochs", "1"]
    assert main([*flags, "--run-dir", str(tmp_path / "run")]) == 0
