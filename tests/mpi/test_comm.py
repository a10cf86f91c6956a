"""The transport itself. Alone (serial), and under `mpirun -n N python -m mpi4py -m pytest --with-mpi`."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedproc_mpi.comm import Comm
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.errors import TrainingFailed, UserError


@pytest.fixture(params=["mpi", pytest.param("torch", marks=pytest.mark.mpi(min_size=2))])
def comm(request: pytest.FixtureRequest) -> Iterator[Comm]:
    """The world under --with-mpi, once with the client ranks joined by gloo; else serial."""
    if not request.config.getoption("--with-mpi"):
        yield SerialComm()
        return
    from mpi4py import MPI

    from fedproc_mpi.comm.mpi import MpiComm
    from fedproc_mpi.comm.torchdist import TorchComm

    world = MpiComm(MPI.COMM_WORLD)
    comm = world if request.param == "mpi" else TorchComm(world, "gloo", torch.device("cpu"))
    yield comm
    comm.close()


def every_rank(comm: Comm, good: bool) -> None:
    """A failure on one rank must not hang the others in the next collective."""
    reports = comm.collect(good)
    assert comm.share(reports is None or all(reports)), "failed on some rank"


@pytest.mark.mpi
@pytest.mark.parametrize("way", ["host", "staged", "device"])
def test_broadcast_and_reduce_in_chunks(comm: Comm, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """way: as a tensor of that kind would take, here with host memory for the GPU's."""
    if comm.name != "serial":
        monkeypatch.setattr("fedproc_mpi.comm.mpi.CHUNK_BYTES", 56)  # 7 doubles: 3 chunks of 20
        monkeypatch.setattr("fedproc_mpi.comm.mpi.MpiComm._way", lambda self, device: way)
    values = torch.arange(20, dtype=torch.float64)
    sent = values.clone() if comm.rank == 0 else torch.full((20,), -1.0, dtype=torch.float64)
    comm.broadcast(sent)
    every_rank(comm, torch.equal(sent, values))
    term = values + comm.rank
    comm.reduce(term)
    # Σ_r (i + r) = n·i + n(n-1)/2
    n = comm.size
    every_rank(comm, comm.rank != 0 or torch.equal(term, n * values + n * (n - 1) / 2))


@pytest.mark.mpi
def test_ranks_of_this_host(comm: Comm) -> None:
    every_rank(comm, comm.local_ranks() == list(range(comm.size)))


@pytest.mark.mpi(min_size=2)
def test_cuda_aware_is_tried_between_the_ranks_and_never_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    from fedproc_mpi.comm.mpi import MpiComm
    from fedproc_mpi.placement.devices import Placement
    from fedproc_mpi.placement.transport import connect_transport

    world = MpiComm(MPI.COMM_WORLD)
    mine = Placement(world.rank, "a", 1, 1)
    all_of_them = [Placement(r, "a", 1, 1) for r in range(world.size)]
    monkeypatch.setattr("fedproc_mpi.comm.mpi.MpiComm._way", lambda self, device: "device")
    comm = connect_transport(world, "mpi", True, mine, all_of_them)
    every_rank(world, comm is world and world.cuda_aware)
    connect_transport(world, "mpi", False, mine, all_of_them)
    every_rank(world, not world.cuda_aware)
    # Alone MPI read the memory right, between ranks it does not: one value is another on the last rank.
    broadcast = MpiComm.broadcast

    def wrong(self: MpiComm, buffer: torch.Tensor) -> None:
        broadcast(self, buffer)
        buffer[-1] += self.rank == self.size - 1

    monkeypatch.setattr(MpiComm, "broadcast", wrong)
    try:
        connect_transport(world, "mpi", True, mine, all_of_them)
        good = False
    except UserError as error:
        good = error.agreed and "values changed on the way" in str(error)
    monkeypatch.undo()
    every_rank(world, good)


@pytest.mark.mpi(min_size=2)
def test_auto_goes_on_over_mpi_where_the_group_cannot_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mpi4py import MPI

    from fedproc_mpi.comm import torchdist
    from fedproc_mpi.comm.mpi import MpiComm
    from fedproc_mpi.placement.devices import Placement
    from fedproc_mpi.placement.transport import connect_transport

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no port is free")

    world = MpiComm(MPI.COMM_WORLD)
    mine = Placement(world.rank, "a", 1, 1)
    gpus = [Placement(r, f"h{r}", 1, 1, 0, "Fake", f"U{r}") for r in range(world.size)]
    for what in ("choose", "TCPStore"):
        monkeypatch.setattr("fedproc_mpi.placement.transport.choose", lambda *_: "gloo")
        if what == "choose":  # rank 0 is not reached
            monkeypatch.setattr(torchdist.TorchComm, "local_ranks", lambda self: [self.rank])
            monkeypatch.setattr(torchdist, "_own_addresses", lambda: ["nowhere.invalid"])
        else:
            monkeypatch.setattr(torchdist.dist, "TCPStore", fails)
        comm = connect_transport(world, "auto", False, mine, gpus)
        told = capsys.readouterr().out
        words = "nowhere.invalid" if what == "choose" else "rank 0 cannot listen (no port is free)"
        good = (words in told and "going on over mpi" in told) if world.rank == 0 else not told
        try:
            connect_transport(world, "torch", False, mine, gpus)
            good = False
        except UserError as error:
            good &= error.agreed and "--transport mpi" in str(error)
        monkeypatch.undo()
        every_rank(world, good and comm is world)


@pytest.mark.mpi
def test_broadcast_of_bytes_and_bools(comm: Comm) -> None:
    for dtype in (torch.uint8, torch.bool, torch.int64):
        wanted = torch.tensor([1, 0, 1], dtype=dtype)
        sent = wanted.clone() if comm.rank == 0 else torch.zeros(3, dtype=dtype)
        comm.broadcast(sent)
        every_rank(comm, torch.equal(sent, wanted))


@pytest.mark.mpi
def test_collect_and_share(comm: Comm) -> None:
    reports = comm.collect({"rank": comm.rank, "text": "é" * comm.rank})
    wanted = [{"rank": r, "text": "é" * r} for r in range(comm.size)]
    every_rank(comm, reports == (wanted if comm.rank == 0 else None))
    every_rank(comm, comm.share([1, "x"] if comm.rank == 0 else None) == [1, "x"])


@pytest.mark.mpi
def test_agree_raises_the_same_error_everywhere(comm: Comm) -> None:
    comm.agree(None)
    last = comm.size - 1
    where = f" (rank {last} on {socket.gethostname()})" if last else ""
    for kind in (UserError, TrainingFailed):
        try:
            comm.agree(kind(f"rank {comm.rank}") if comm.rank == last else None)
            good = False
        except kind as error:
            good = error.agreed and str(error) == f"rank {last}{where}"
        every_rank(comm, good)


@pytest.mark.mpi(min_size=2)
def test_a_waiting_rank_sleeps(comm: Comm) -> None:
    """Law 4: while the last rank works for 2 s, the others use next to no CPU time."""
    comm.share(None)
    before = time.process_time()
    if comm.rank == comm.size - 1:
        time.sleep(2)
    comm.collect(None)
    used = time.process_time() - before
    every_rank(comm, used < 0.2)


@pytest.mark.mpi
def test_a_run_over_this_transport_equals_a_serial_one(comm: Comm, shards: Path, tmp_path: Path) -> None:
    """Each rank runs alone as well; rank 0 compares."""
    from fedproc_mpi import Config, run

    options = {"rounds": 2, "local_epochs": 1, "batch_size": 32, "sample_rate": 0.6}
    path = comm.share(str(shards))
    alone = run(Config.create(**options, shards=path, run_dir=str(tmp_path / "alone")))
    run_dir = comm.share(str(tmp_path / "together"))
    together = run(Config.create(**options, shards=path, run_dir=run_dir), comm)
    assert alone is not None
    hashes = comm.collect(alone.summary["model_sha256"])
    good = comm.rank != 0 or (
        together is not None and hashes is not None and set(hashes) == {together.summary["model_sha256"]}
    )
    every_rank(comm, good)


@pytest.mark.mpi(min_size=2)
def test_a_backend_that_fails_on_one_rank_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are inside the backend by then, so the rank raises alone and `main` ends the job."""
    from mpi4py import MPI

    from fedproc_mpi.comm import torchdist
    from fedproc_mpi.comm.mpi import MpiComm

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no interface ib0")

    world = MpiComm(MPI.COMM_WORLD)
    monkeypatch.setattr(torchdist.dist, "init_process_group", fails)
    try:
        torchdist.TorchComm(world, "gloo", torch.device("cpu"))
        good = world.rank == 0
    except UserError as error:
        good = world.rank != 0 and not error.agreed and "no gloo group: no interface ib0" in str(error)
    every_rank(world, good)


@pytest.mark.mpi(min_size=2)
def test_ranks_of_several_hosts_meet_at_rank_0s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each rank had a host of its own; and an address that leads nowhere is one error on all ranks."""
    from mpi4py import MPI

    from fedproc_mpi.comm import torchdist
    from fedproc_mpi.comm.mpi import MpiComm

    world = MpiComm(MPI.COMM_WORLD)
    monkeypatch.setattr(torchdist.TorchComm, "local_ranks", lambda self: [self.rank])
    with contextlib.suppress(OSError):
        socket.gethostbyname(socket.gethostname())  # where this host's own name means nothing, no rank meets
        comm = torchdist.TorchComm(world, "gloo", torch.device("cpu"))
        sent = torch.full((3,), float(world.rank))
        comm.broadcast(sent)
        every_rank(world, torch.equal(sent, torch.zeros(3)))
        comm.close()
    monkeypatch.setattr(torchdist, "_own_addresses", lambda: ["nowhere.invalid"])
    try:
        torchdist.TorchComm(world, "gloo", torch.device("cpu"))
        told = ""
    except UserError as error:
        told = str(error) if error.agreed else "not agreed"
    every_rank(world, "cannot reach rank 0 at nowhere.invalid" in told and "--transport mpi" in told)
