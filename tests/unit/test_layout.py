"""The house (CONTRIBUTING): imports go downward only, MPI lives in comm/ alone."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.processes import ROOT

# From the lowest floor to the highest. A name stands for a module, or for a package and all that is in it;
# the longest that fits counts.
FLOORS = [
    ("errors", "terminal", "figure"),
    ("flags", "clock", "command", "plugins"),
    ("config",),
    ("comm",),
    ("learn", "learn.sums", "learn.flat", "learn.seeds", "learn.cohort", "learn.models"),
    ("shards",),
    ("learn.data", "partition"),
    ("tensorboard",),
    ("placement", "identity"),
    ("learn.client", "learn.evaluation"),
    ("algorithms",),
    ("rank", "store"),
    ("progress", "steps"),
    ("federated",),
    ("predictor", "report", "cli"),
    ("studies",),
    ("__init__",),
    ("__main__", "compare", "doctor", "evaluate", "export", "pictures", "predict", "scaling", "study"),
]
DATA_PREP_USES = ("command", "errors", "figure", "flags", "partition", "shards", "terminal")
DATA_PREP_FLOORS = [
    ("partitions", "ranges", "tables"),
    ("heldout", "partition_file"),
    ("sources",),
    ("plot", "show", "write"),
    ("cli", "__init__"),
    ("__main__",),
]


def modules(package: str) -> dict[str, Path]:
    """Each module of a package by its dotted name."""
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules("fedproc_mpi") | modules("data_prep")


def imports_of(module: str) -> set[str]:
    """Modules that one imports, anywhere: in functions and under TYPE_CHECKING too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            assert node.module
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` is an import of that module
            found |= {name if name in MODULES else node.module for name in names}
    return found


def floor(module: str) -> int:
    package, _, name = module.partition(".")
    name = name or "__init__"
    floors = FLOORS if package == "fedproc_mpi" else DATA_PREP_FLOORS
    fitting = [
        (len(room), i)
        for i, rooms in enumerate(floors)
        for room in rooms
        if name == room or name.startswith(f"{room}.")
    ]
    assert fitting, f"{module}: on which floor is it?"
    return max(fitting)[1]


def test_imports_go_downward_only() -> None:
    for module in MODULES:
        for other in imports_of(module) & set(MODULES):
            if module.split(".")[0] != other.split(".")[0]:  # the next test's, and one exception
                allowed = module.startswith("data_prep") or module in (
                    "fedproc_mpi.__main__",
                    "fedproc_mpi.pictures",
                    "fedproc_mpi.scaling",
                    "fedproc_mpi.study",
                )
                assert allowed, f"{module} imports {other}"
            else:
                assert floor(other) <= floor(module), f"{module} imports {other}, which is above it"


def test_data_prep_uses_the_shards_and_nothing_above_them() -> None:
    for module in modules("data_prep"):
        used = {m.partition(".")[2] for m in imports_of(module) & set(modules("fedproc_mpi"))}
        assert used <= set(DATA_PREP_USES), module


def test_no_modules_import_each_other() -> None:
    """Not over any number of steps either; `__init__` of fedproc_mpi is left out, which loads lazily."""
    graph = {m: (imports_of(m) & set(MODULES)) - {"fedproc_mpi"} for m in MODULES}
    list(TopologicalSorter(graph).static_order())  # CycleError names the cycle


def test_mpi_lives_in_comm_alone() -> None:
    for module in MODULES:
        if not module.startswith("fedproc_mpi.comm."):
            assert not {m for m in imports_of(module) if m.split(".")[0] == "mpi4py"}, module


def test_a_wrong_import_is_noticed() -> None:
    """The tests above can fail: on an import of a higher floor, of data_prep, of MPI, and on a cycle."""
    assert floor("fedproc_mpi.federated") > floor("fedproc_mpi.rank") > floor("fedproc_mpi.learn.flat")
    assert floor("fedproc_mpi.learn.client") > floor("fedproc_mpi.placement.devices")
    assert "mpi4py" in imports_of("fedproc_mpi.comm.mpi")
    assert "fedproc_mpi.federated" in imports_of("fedproc_mpi.__main__")  # inside a function
    assert "fedproc_mpi.comm" in imports_of("fedproc_mpi.__main__")  # under TYPE_CHECKING
