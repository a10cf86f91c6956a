"""A Slurm for the session, and a checkout of the repository as a user has it, with stand-in shards."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_prep.__main__ import main as data_prep
from tests.slurm.cluster import Cluster, missing_programs
from tests.support.processes import ROOT, clean_environment, skip_or_fail

SMALL = ("--model", "small-cnn", "--local-epochs", "1", "--batch-size", "4", "--augment", "none")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Started once; its jobs are cancelled and its daemons ended after the last test."""
    if missing := missing_programs():
        skip_or_fail(f"no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@dataclass(frozen=True)
class Checkout:
    """The repository's folder and the Slurm to submit to."""

    folder: Path
    slurm: Cluster

    def submit(self, *arguments: str, cwd: Path | None = None, **variables: str) -> str:
        """sbatch ARGUMENTS from the folder; the job's number."""
        env = clean_environment(**{"FEDPROC_VENV": sys.prefix, **variables})
        del env["PYTHONPATH"]  # the job finds the package in its folder, as a user's does
        return self.slurm.submit(*arguments, cwd=cwd or self.folder, env=env)

    def say(self, module: str, *arguments: str) -> str:
        """What `python -m fedproc_mpi.MODULE ARGUMENTS` from the folder says."""
        env = clean_environment(FEDPROC_VENV=sys.prefix, SLURM_CONF=str(self.slurm.conf))
        del env["PYTHONPATH"]
        words = [sys.executable, "-m", f"fedproc_mpi.{module}", *arguments]
        done = subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self, job: str) -> str:
        """What the job, or all of an array, wrote."""
        logs = sorted(self.folder.glob(f"jobs/logs/*-{job}*.out"))
        return "".join(path.read_text() for path in logs)

    def finish(self, job: str, seconds: float) -> tuple[int, str]:
        """(exit code, log) once the job has ended."""
        try:
            ((_, code),) = self.slurm.wait(job, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log(job)}") from None
        return code, self.log(job)


@pytest.fixture(scope="session")
def checkout(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """jobs/ is a copy and the packages are links, so that shards, runs and logs lie elsewhere."""
    folder = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("*.out", "site.sh", "__pycache__")
    shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=ignored)
    for package in ("fedproc_mpi", "data_prep"):
        (folder / package).symlink_to(ROOT / package)
    for name, clients in {"cifar100_m100": 100, "cifar10_m10": 10}.items():
        size = ["--classes", "10", "--image-size", "8", "--channels", "1", "--samples", "12"]
        out = ["--test-samples", "200", "--out", str(folder / "shards" / f"{name}.h5")]
        assert data_prep(["synthetic", "--clients", str(clients), *size, *out]) == 0
    return Checkout(folder, slurm)
