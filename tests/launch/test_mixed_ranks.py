"""Ranks that do not hold the same files: told before anything is trained, never a wrong model."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.files import make_shards
from tests.support.processes import ROOT, clean_environment, command, finish

FLAGS = ["-m", "fedproc_mpi", "--shards", "shards.h5", "--rounds", "1", "--local-epochs", "1"]
OWN = '''"""My own."""
from dataclasses import dataclass
from fedproc_mpi.algorithms.fedavg import FedAvg
@dataclass(frozen=True)
class Mine(FedAvg):
    """Mine."""
'''


def start_mixed(folders: Sequence[Path], flags: Sequence[str], package: Path) -> "subprocess.Popen[str]":
    """Rank 0 in the first folder, two ranks in the second, with the package from another place."""
    mpirun, _, count, python = command(1)
    others = ["-n", "2", "--wdir", str(folders[1]), "env", f"PYTHONPATH={package}", python, *flags]
    return subprocess.Popen(
        [mpirun, "-n", count, "--wdir", str(folders[0]), python, *flags, ":", *others],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_differs_is_named_with_its_ranks(tmp_path: Path) -> None:
    """Two "hosts" are two folders: other shards under one path, an edited package, an edited own file."""
    folders = [tmp_path / name for name in ("a", "b")]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        make_shards(folder, seed=seed).rename(folder / "shards.h5")
        (folder / "mine.py").write_text(OWN + f"    # {seed}\n")
    same = [tmp_path / name for name in ("c", "d")]
    for folder in same:
        folder.mkdir()
        shutil.copy(folders[0] / "shards.h5", folder)
    package = tmp_path / "edited"
    shutil.copytree(ROOT / "fedproc_mpi", package / "fedproc_mpi")
    with (package / "fedproc_mpi" / "errors.py").open("a") as file:
        file.write("# edited on one node\n")
    own = [*FLAGS, "--algorithm", "mine.py"]
    for where, flags, path, told in (
        (folders, FLAGS, ROOT, ["the shards' contents (rank 0 on "]),
        (same, FLAGS, package, ["the package fedproc_mpi (rank 0 on "]),
        (folders, own, ROOT, ["the shards' contents (", "; mine.py (rank 0 on "]),
    ):
        done = finish(start_mixed(where, flags, path))
        assert done.returncode == 2, done.stderr
        assert "fedproc_mpi: not the same on all ranks: " in done.stderr
        assert all(words in done.stderr for words in told)
        assert "ranks 1-2 on " in done.stderr
        assert "Traceback" not in done.stderr
        assert not any((folder / "runs").exists() for folder in where)
