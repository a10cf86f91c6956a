"""The doctor in whole and broken states."""

import os
import subprocess
import sys
from pathlib import Path

from fedproc_mpi.doctor import look
from tests.support.processes import activated, clean_environment, command, finish, start, wait_for
from tests.unit.test_doctor import HYDRA


def test_a_job_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    """Even one that does not heed SIGTERM, like an mpirun that waits for its ranks."""
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork();"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w'); time.sleep(60)"
    )
    assert look.run([sys.executable, "-c", code], 1) == (None, "no answer within 1 s")
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


def steps(stderr: str) -> list[str]:
    """What was tried, in order."""
    return [line.split(maxsplit=1)[1] for line in stderr.splitlines() if line.startswith("... ")]


def test_what_hangs_or_crashes_is_the_last_step_named(tmp_path: Path) -> None:
    """An MPI may do both. It is ended from outside Python, stuck in C or not."""
    code = (
        "import sys, time, os\nfrom fedproc_mpi.doctor import __main__ as doctor\n"
        "def mpi(): os.abort() if sys.argv[1] == 'crash' else time.sleep(60)\n"
        "doctor.library_text, doctor.TOGETHER = mpi, 1\n"
        "step = doctor.Report.step\n"
        "doctor.Report.step = lambda self, name, seconds=1: step(self, name, seconds)\n"
        "sys.exit(doctor.main([]))\n"
    )
    jobs = [start(["-c", code, how], tmp_path) for how in ("hang", "crash")]
    for job in jobs:
        done = finish(job)
        assert done.returncode not in (0, 2)
        assert steps(done.stderr)[-1] == "MPI library"
        assert done.stdout.splitlines()[-1].startswith("ok       Python")


def test_whole_alone_and_under_mpirun(tmp_path: Path) -> None:
    job = doctor(tmp_path, 3)
    serial = report(doctor(tmp_path), 0)
    assert "ok       MPI library" in serial
    assert "ok       mpirun -n 2  gives ranks 0 and 1 of 2" in serial
    assert "ok       transport    alone: none" in serial
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
    tasks = {"SLURM_STEP_NUM_TASKS": "4", "PYTHONPATH": broken}
    states = {
        "wrong    MPI library  mpi4py finds no MPI library": {
            "MPI4PY_LIBMPI": "/nonexistent",
            "PYTHONPATH": broken,
        },
        "wrong    mpirun       MPICH 5.0.2 (": {"PATH": path, "PYTHONPATH": broken},
        "wrong    launch       the launcher started 4 tasks": {**tasks, "SLURM_PROCID": "0"},
    }
    jobs = [doctor(tmp_path, **env) for env in states.values()]
    quiet = doctor(tmp_path, **tasks, SLURM_PROCID="1")
    for words, job in zip(states, jobs, strict=True):
        text = report(job, 1)
        assert words in text
        assert ("wrong    torch        ImportError: libcudart" in text) != ("wrong    launch" in text)
        assert text.splitlines()[-1].endswith(" wrong")
    assert report(quiet, 1) == ""
