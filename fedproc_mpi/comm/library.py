"""Which MPI there is: the library that mpi4py loads, and the MPI to which an mpirun belongs."""

import re
from dataclasses import dataclass

from fedproc_mpi.errors import UserError


@dataclass(frozen=True)
class Mpi:
    """An implementation of MPI. version: '' where unknown."""

    vendor: str
    version: str

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}".strip()

    def clashes(self, other: "Mpi") -> bool:
        """Whether one's mpirun cannot start the other's ranks, as far as names tell.

        Intel MPI, Cray MPICH and MVAPICH come from MPICH and share its launcher. Versions are compared
        within one vendor.
        """
        if self.vendor != other.vendor:
            return "Open MPI" in (self.vendor, other.vendor)
        majors = [m.version.split(".")[0] for m in (self, other)]
        return "" not in majors and majors[0] != majors[1]


PATTERNS = {
    "Open MPI": r"(?:Open MPI|OpenRTE)\)? v?(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library\D*(\d[\d.]*)",
    "Cray MPICH": r"CRAY MPICH version\s*(\d[\w.]*)",
    "MVAPICH": r"MVAPICH\S* Version\s*:\s*(\d[\w.]*)",
    "MPICH": r"(?:MPICH Version:|HYDRA build details:\s+Version:)\s*(\d[\w.]*)",
}


def parse_mpi(text: str) -> Mpi | None:
    """Read what `mpirun --version` or MPI_Get_library_version says. None for an MPI that is not known."""
    found = ((vendor, re.search(pattern, text)) for vendor, pattern in PATTERNS.items())
    return next((Mpi(vendor, match[1]) for vendor, match in found if match), None)


def library_text() -> str:
    """What the MPI library of mpi4py says of its version. MPI is loaded, but not started.

    Raises UserError where mpi4py or its library is not there.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # `launch.connect` starts it
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise UserError("mpi4py is not installed") from None
    except (ImportError, RuntimeError) as error:
        why = " / ".join(line.strip() for line in str(error).splitlines() if line.strip())
        raise UserError(f"mpi4py finds no MPI library: {why[:240]}") from None
    return MPI.Get_library_version().strip("\0 \n")
