"""The house (CONTRIBUTING): imports go downward only, MPI lives in comm/ alone, importing starts nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment

FLOORS = {
    **dict.fromkeys(("errors", "flags", "config"), 0),
    **dict.fromkeys(("comm", "shards", "learn", "placement", "store"), 1),
    "algorithms": 3,
    **dict.fromkeys(("federated", "parts"), 4),
    **dict.fromkeys(("__main__", "__init__", "cli", "report", "doctor", "scaling", "study"), 5),
}


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, function bodies included, TYPE_CHECKING blocks not."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "fedproc_mpi" else {node.module}
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_imports_go_downward_only() -> None:
    for path in (ROOT / "fedproc_mpi").rglob("*.py"):
        own = path.relative_to(ROOT / "fedproc_mpi").parts[0].removesuffix(".py")
        assert own in FLOORS, f"{path}: which floor?"
        if own == "__init__":
            continue
        for module in imports_of(path):
            if module.startswith("fedproc_mpi."):
                assert FLOORS[room(module)] <= FLOORS[own], f"{path} imports {module}"
    for path in (ROOT / "data_prep").rglob("*.py"):
        above = {m for m in imports_of(path) if m.startswith("fedproc_mpi.")}
        assert {room(m) for m in above} <= {"shards", "errors", "flags"}, path


def test_mpi_lives_in_comm_alone() -> None:
    for path in (ROOT / "fedproc_mpi").rglob("*.py"):
        relative = path.relative_to(ROOT / "fedproc_mpi").as_posix()
        if not relative.startswith(("comm/", "doctor")):
            assert not {m for m in imports_of(path) if m.split(".")[0] == "mpi4py"}, relative


@pytest.mark.launches
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
