"""data_prep on a disk that fills up while it writes."""

import os
import subprocess
import sys

from tests.support.processes import ROOT

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
from data_prep.__main__ import main
sys.exit(main(["digits", "--out", sys.argv[1]]))
"""


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(tmp_path):
    """A file-size limit makes every write beyond it fail, as a full disk does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "x.h5")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr
    assert not any(tmp_path.iterdir())
