"""The probe of cuda_aware in a process's own MPI."""

import pytest
import torch

from fedproc_mpi.comm import cuda_probe


def test_the_probe_tells_good_memory_from_none() -> None:
    pytest.importorskip("mpi4py")
    assert cuda_probe.failure("cpu") == ""
    if not torch.cuda.is_available():
        assert "MPI failed on memory of cuda:0" in cuda_probe.failure("cuda:0")
