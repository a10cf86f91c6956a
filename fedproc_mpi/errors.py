"""The ways a run ends that are not a crash, each with its exit code."""


class FedprocError(Exception):
    """Base: `exit_code` is what the process returns.

    `agreed` is true when every rank raises the same error at the same point, so that all can leave
    through MPI_Finalize together; a rank that fails alone has to abort the job instead.
    """

    exit_code = 1

    def __init__(self, message: str, agreed: bool = False) -> None:
        super().__init__(message)
        self.agreed = agreed


class UserError(FedprocError, ValueError):
    """The input is wrong. The message says what, where, and what to do (exit 2, no traceback)."""

    exit_code = 2


class TrainingFailed(FedprocError):
    """Training cannot go on: a client diverged (exit 3)."""

    exit_code = 3


class Stopped(FedprocError):
    """A signal asked the run to stop; a checkpoint was written, `--resume` goes on (exit 75)."""

    exit_code = 75
