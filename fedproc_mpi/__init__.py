"""FedProc and its baselines as one MPI job. Importing this starts nothing.

from fedproc_mpi import Config, run, load_model
result = run(Config.create(algorithm="fedproc", rounds=5))
model = load_model(result.run_dir)
"""

from typing import TYPE_CHECKING, Any

from fedproc_mpi.config import Config
from fedproc_mpi.errors import FedprocError, Stopped, TrainingFailed, UserError

if TYPE_CHECKING:
    from fedproc_mpi.federated import Result, run
    from fedproc_mpi.predictor import load_model

__all__ = [
    "Config",
    "FedprocError",
    "Result",
    "Stopped",
    "TrainingFailed",
    "UserError",
    "load_model",
    "run",
]
_LATER = {"run": "federated", "Result": "federated", "load_model": "predictor"}


def __getattr__(name: str) -> Any:
    """torch is imported when something that needs it is asked for, and not before."""
    if name not in _LATER:
        raise AttributeError(f"module 'fedproc_mpi' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"fedproc_mpi.{_LATER[name]}"), name)
