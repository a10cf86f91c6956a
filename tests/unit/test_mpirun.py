"""Which mpirun a command starts its ranks by."""

import sys
from pathlib import Path

import pytest

from fedproc_mpi.comm import mpirun
from fedproc_mpi.comm.library import Mpi
from fedproc_mpi.errors import UserError


def program(path: Path) -> str:
    """An empty program at path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_mpirun_on_path_then_the_one_beside_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command works in an environment that is not activated; an activated one, or a module, comes first."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "site"))
    assert mpirun.find_mpirun() is None
    with pytest.raises(UserError, match=r"3 ranks: no mpirun on PATH, none beside .*venv/python"):
        mpirun.launch_words(3)
    assert mpirun.launch_words(1) == []
    beside = program(tmp_path / "venv" / "mpirun")
    assert mpirun.find_mpirun() == beside
    on_path = program(tmp_path / "site" / "mpiexec")
    assert mpirun.find_mpirun() == on_path
    assert mpirun.launch_words(3)[0] == on_path
    assert mpirun.launch_words(3)[-2:] == ["-n", "3"]


def test_only_open_mpi_has_to_be_told_not_to_bind() -> None:
    """MPICH binds nothing unless asked, and knows the option by another value."""
    assert mpirun.unbound(Mpi("Open MPI", "5.0.11")) == ["--bind-to", "none"]
    assert mpirun.unbound(Mpi("MPICH", "5.0")) == mpirun.unbound(None) == []
