"""How a process was launched, told from the launchers' variables."""

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
