"""How a process was launched, told from the launchers' variables."""

from pathlib import Path

import pytest

from fedproc_mpi.comm import launch


@pytest.mark.parametrize("by", ["OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"])
def test_mpirun_inside_srun_is_told_from_mpiruns_own_daemons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    """Daemons are one a node; `srun -n 3 mpirun` on one node or two is not."""
    for variables in ({"TASKS": "3", "NODES": "3"}, {"TASKS": "1", "NODES": "1"}, {}):
        with monkeypatch.context() as patch:
            for name, value in {f"SLURM_STEP_NUM_{k}": v for k, v in variables.items()}.items():
                patch.setenv(name, value)
            patch.setenv(by, "0")
            assert launch.mpirun_inside_srun() is None
    monkeypatch.setattr(launch, "PATIENCE", 0)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert launch.mpirun_inside_srun() is None  # srun --mpi=pmi2: no mpirun's variable
    for task, rank in (("0", "0"), ("0", "1"), ("1", "0")):
        monkeypatch.setenv("SLURM_PROCID", task)
        monkeypatch.setenv(by, rank)
        with pytest.raises(SystemExit) as leaving:
            launch.refuse(launch.mpirun_inside_srun())
        assert leaving.value.code == 2
    assert capsys.readouterr().err.count("mpirun inside srun") == 1


def test_a_containers_quota_counts_as_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tightest of the control groups from the root to the process's own."""
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/task\n")
    (tmp_path / "pod" / "task").mkdir(parents=True)
    assert launch.cpu_quota(tmp_path, own) == 0
    (tmp_path / "pod" / "cpu.max").write_text("250000 100000\n")
    (tmp_path / "pod" / "task" / "cpu.max").write_text("max 100000\n")
    assert launch.cpu_quota(tmp_path, own) == 2.5
    assert launch.cpu_quota(tmp_path, tmp_path / "missing") == 0
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda _: set(range(8)))
    for quota, cores in ((0, 8), (2.5, 3), (0.2, 1), (16, 8)):
        monkeypatch.setattr(launch, "cpu_quota", lambda quota=quota: quota)
        assert len(launch.own_cores()) == cores
