"""The suite's other half: pytest under mpirun, on Open MPI and, in an environment of its own, on MPICH."""

import subprocess
import sys

import pytest

from tests.support.processes import ROOT, clean_environment, command, finish, mpich_python

IN_PROCESS = ["tests/mpi", *(f"tests/unit/test_{name}.py" for name in ("sums", "fedproc", "client"))]


def suite(python: str, ranks: int, files: list[str]) -> "subprocess.CompletedProcess[str]":
    process = subprocess.Popen(
        [
            *command(ranks, python),
            "-m",
            "mpi4py",
            "-m",
            "pytest",
            "--with-mpi",
            "-p",
            "no:cacheprovider",
            *files,
        ],
        cwd=ROOT,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return finish(process, timeout=300)


@pytest.mark.parametrize("ranks", [2, 3])
def test_suite_on_open_mpi(ranks: int) -> None:
    pytest.importorskip("pytest_mpi")
    done = suite(sys.executable, ranks, IN_PROCESS)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " failed" not in done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_smaller_set_on_mpich(ranks: int) -> None:
    """mpi4py and MPICH, with the torch that is there already."""
    python = mpich_python()
    name = subprocess.run(
        [python, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    assert "MPICH" in name.stdout
    done = suite(str(python), ranks, ["tests/mpi"])
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
