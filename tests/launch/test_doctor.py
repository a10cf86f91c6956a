"""The doctor in whole and broken states."""

import os
import subprocess
import sys
from pathlib import Path

from fedproc_mpi.doctor import trials
from tests.support.processes import activated, clean_environment, command, finish, wait_for
from tests.unit.test_doctor import HYDRA


def test_a_job_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    """Even one that does not heed SIGTERM, like an mpirun that waits for its ranks."""
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork();"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w'); time.sleep(60)"
    )
    assert trials.run([sys.executable, "-c", code], 1) == (None, "")
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    wait_for(lambda: not any(alive(pid) for pid in pids), 10)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def doctor(cwd: Path, ranks: int | None = None, *flags: str, **env: str) -> "subprocess.Popen[str]":
    """Start it, with the MPI of this Python first on PATH."""
    return subprocess.Popen(
        [*command(ranks), "-m", "fedproc_mpi.doctor", *flags],
        cwd=cwd,
        env=clean_environment(**{"PATH": activated(), **env}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def without_torch(folder: Path) -> str:
    """A PYTHONPATH on which torch cannot be imported: seconds saved, and a broken state more."""
    (folder / "broken" / "torch").mkdir(parents=True)
    (folder / "broken" / "torch" / "__init__.py").write_text(
        "raise ImportError('libcudart.so.12: no such file')"
    )
    return os.pathsep.join([str(folder / "broken"), clean_environment()["PYTHONPATH"]])


def report(process: "subprocess.Popen[str]", code: int) -> str:
    done = finish(process)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def test_whole_alone_and_under_mpirun(tmp_path: Path) -> None:
    job = doctor(tmp_path, 3)
    serial = report(doctor(tmp_path), 0)
    assert "ok       MPI library" in serial
    assert "ok       mpirun -n 2  gives ranks 0 and 1 of 2" in serial
    assert "alone: nothing to measure" in serial
    assert serial.splitlines()[-1].endswith((" 0 wrong", "all ok"))
    text = report(job, 0)
    assert text.count(" host  ") == 1
    assert text.count("GB/s over mpi") == 2
    assert "ranks 0-2" in text
    assert list(tmp_path.iterdir()) == []


def test_broken_states_are_reports_and_exit_1(tmp_path: Path) -> None:
    broken = without_torch(tmp_path)
    (tmp_path / "bin").mkdir()
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.write_text(f"#!/bin/sh\ncat <<'E'\n{HYDRA}E\n")
    mpirun.chmod(0o755)
    path = activated(mpirun.parent)
    (tmp_path / "ends" / "mpi4py").mkdir(parents=True)
    (tmp_path / "ends" / "mpi4py" / "__init__.py").write_text(
        "import os; print('*** oh', flush=True); os.abort()"
    )
    ends = os.pathsep.join([str(tmp_path / "ends"), clean_environment()["PYTHONPATH"]])
    tasks = {"SLURM_STEP_NUM_TASKS": "4", "PYTHONPATH": broken}
    states = {
        "wrong    MPI library  mpi4py finds none": {"MPI4PY_LIBMPI": "/nonexistent", "PYTHONPATH": broken},
        "wrong    mpirun       MPICH 5.0.2 (": {"PATH": path, "PYTHONPATH": broken},
        "wrong    MPI library  the process was ended by SIGABRT (oh)": {"PYTHONPATH": ends},
        "wrong    launch       4 tasks were started": {**tasks, "SLURM_PROCID": "0"},
    }
    jobs = [doctor(tmp_path, **env) for env in states.values()]
    quiet = doctor(tmp_path, **tasks, SLURM_PROCID="1")
    for words, job in zip(states, jobs, strict=True):
        text = report(job, 1)
        assert words in text
        assert (
            words.startswith("wrong    MPI library  the")
            or "wrong    torch        cannot be imported" in text
        )
        assert text.splitlines()[-1].endswith(" wrong")
    assert report(quiet, 1) == ""
