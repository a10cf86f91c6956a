"""Which tests run where, and the shards they share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import make_shards
from tests.support.processes import none_left, remove_dead_sessions

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under mpirun, a test must not start processes of its own, as those in launch/ and slurm/ do. Alone,
    tests of the transport run on the serial one, and those that need several ranks are left to
    `launch/test_under_mpirun.py`.

    pytest-mpi's own skips go: they would also hit a test that merely has a parameter called mpi.
    """
    left_out = []
    for item in items:
        marks = list(item.iter_markers("mpi"))
        if config.getoption("--with-mpi", default=False):
            if item.path.relative_to(HERE).parts[0] in ("launch", "slurm"):
                left_out.append(item)
        elif any(mark.kwargs for mark in marks):
            left_out.append(item)
        else:
            item.own_markers[:] = [m for m in item.own_markers if "--with-mpi" not in str(m.kwargs)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True, scope="session")
def no_dead_sessions() -> Iterator[None]:
    """Before the tests and behind them: jobs of Slurm that were cancelled leave some as well."""
    remove_dead_sessions()
    yield
    remove_dead_sessions()


@pytest.fixture(autouse=True)
def no_jobs_left() -> Iterator[None]:
    """Whatever a test started ends with it."""
    with none_left():
        yield


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits for 5 clients. Read-only: copy it before changing it."""
    return make_shards(tmp_path_factory.mktemp("shards"))
