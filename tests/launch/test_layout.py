"""The house (CONTRIBUTING): importing starts nothing."""

import subprocess
import sys

from tests.support.processes import clean_environment


def test_importing_the_package_starts_nothing() -> None:
    code = (
        "import sys, fedproc_mpi, fedproc_mpi.__main__;"
        "print('torch' in sys.modules, 'mpi4py' in sys.modules);"
        "import fedproc_mpi.federated; print('mpi4py' in sys.modules, 'torchvision' in sys.modules,"
        " 'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_environment()
    )
    assert done.stdout.split() == ["False"] * 5
