"""The ways a run ends that are not a crash, each with its exit code."""


def reason(error: BaseException) -> str:
    """Why something could not be written or read, in a line; the system's words where it has some.

    torch says "unexpected pos" of a full disk, and the OSError is behind it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:200] or type(error).__name__


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


def from_system(error: OSError) -> UserError:
    """What the system refuses, as the user's error: file, and what is wrong with it."""
    where = f"{str(error.filename)[:200]}: " if error.filename else ""
    return UserError(f"{where}{reason(error)}")


class TrainingFailed(FedprocError):
    """Training cannot go on: a client diverged (exit 3)."""

    exit_code = 3


class Stopped(FedprocError):
    """A signal asked the run to stop; a checkpoint was written, `--resume` goes on (exit 75)."""

    exit_code = 75
