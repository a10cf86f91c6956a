"""Starting jobs as a user would, waiting for them, killing them."""

import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER_PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "MPI_", "MPICH_", "HYDRA_", "HYDI_")
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_STARTED: list["subprocess.Popen[str]"] = []
QUICK = ("--rounds", "4", "--local-epochs", "1")


def skip_or_fail(reason: str) -> None:
    """Skip where something is absent; on CI nothing of MPI may be."""
    if os.environ.get("FEDPROC_NO_SKIPS"):
        pytest.fail(f"{reason}, and FEDPROC_NO_SKIPS is set")
    pytest.skip(reason)


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without a launcher's variables, so that a job starts as from a shell."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    return {**kept, **AS_ROOT, "PYTHONPATH": str(ROOT), **more}


def activated(*first: Path) -> str:
    """PATH as in a shell where this Python's environment is activated, with `first` before it."""
    return os.pathsep.join([*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"]])


def command(ranks: int | None, python: str = sys.executable) -> list[str]:
    """`python`, or mpirun of the same environment with that many ranks."""
    if ranks is None:
        return [python]
    mpirun = Path(python).with_name("mpirun")
    found = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if found is None:
        skip_or_fail("no mpirun beside this Python")
    return [str(found), "-n", str(ranks), python]


def mpich_python() -> Path:
    """The Python of the environment with MPICH, which `make .venv-mpich/installed` makes."""
    python = Path(os.environ.get("FEDPROC_MPICH_VENV", ROOT / ".venv-mpich")) / "bin" / "python"
    if not python.exists():
        skip_or_fail("no .venv-mpich (make .venv-mpich/installed)")
    return python


def start(
    arguments: Sequence[str],
    cwd: Path,
    ranks: int | None = None,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> "subprocess.Popen[str]":
    """Start `python ARGUMENTS`, under mpirun when `ranks` is given."""
    job = subprocess.Popen(
        [*command(ranks, python), *arguments],
        cwd=cwd,
        env=clean_environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _STARTED.append(job)
    return job


@contextmanager
def none_left() -> Iterator[None]:
    """Jobs started in a `with` block are ended behind it: a test that fails leaves none spinning."""
    before = len(_STARTED)
    yield
    for job in _STARTED[before:]:
        if job.poll() is None:
            kill_tree(job.pid)
            job.communicate()
        _remove_session(job.pid)
    del _STARTED[before:]


def remove_dead_sessions() -> None:
    """Remove the session folders of this user's mpiruns that were killed.

    Open MPI 5 cannot start as the process whose number such a folder has ("The PMIx server's listener thread
    failed to start"), and numbers come again.
    """
    for folder in Path(tempfile.gettempdir()).glob("ompi.*"):
        number = folder.suffix[1:]
        if number.isdecimal() and folder.owner() == getpass.getuser() and not Path("/proc", number).exists():
            _remove_session(int(number))


def _remove_session(pid: int) -> None:
    shutil.rmtree(Path(tempfile.gettempdir(), f"ompi.{pid}"), ignore_errors=True)


def finish(process: "subprocess.Popen[str]", timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    """Wait for it; past the time limit the whole job is killed and the test fails with its output."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        out, err = process.communicate()
        pytest.fail(f"still running after {timeout} s: {process.args}\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def call(
    arguments: Sequence[str],
    cwd: Path,
    ranks: int | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> "subprocess.CompletedProcess[str]":
    """Start and finish."""
    return finish(start(arguments, cwd, ranks, env), timeout)


def kill_tree(pid: int) -> None:
    """kill -9 of a process and all that descend from it, at one moment."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    for member in family:
        try:
            os.kill(member, signal.SIGKILL)
        except ProcessLookupError:
            continue


def wait_for(condition: "object", seconds: float = 60) -> None:
    """Poll until condition() is true."""
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
