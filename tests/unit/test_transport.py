"""Which GPU and which transport a rank gets (with fake GPUs), and the way of a GPU tensor to MPI."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedproc_mpi import Config, UserError
from fedproc_mpi.comm import cuda_probe
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.comm.staging import Staging
from fedproc_mpi.errors import FedprocError
from fedproc_mpi.placement import devices
from fedproc_mpi.placement.devices import Placement, pick_gpu, remarks
from fedproc_mpi.placement.transport import choose


class FakeComm(SerialComm):
    """Rank `rank` of ranks that all live on this host; `views` is what they say of host and GPUs.

    elsewhere: an error of another rank, which the second `agree` brings.
    """

    def __init__(self, rank: int, views: list[list[Any]], elsewhere: str = "") -> None:
        self.rank, self.size, self._views = rank, len(views), views  # type: ignore[misc]
        self._errors = [None, UserError(elsewhere) if elsewhere else None]

    def agree(self, error: FedprocError | None) -> None:
        super().agree(error or self._errors.pop(0))

    def local_ranks(self) -> list[int]:
        return list(range(self.size))

    def collect(self, report: Any) -> list[Any]:
        is_view = isinstance(report, list) and isinstance(report[1], int)
        return self._views if is_view else [report]


class FakeCuda:
    """What devices.py asks of torch.cuda, in order; a question before set_device would make a context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, visible: int) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr("torch.cuda.is_available", lambda: visible > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
        monkeypatch.setattr("torch.cuda.set_device", lambda gpu: self.asked.append(f"set {gpu}"))
        monkeypatch.setattr("torch.cuda.get_device_properties", self.properties)

    def properties(self, gpu: int) -> SimpleNamespace:
        self.asked.append(f"ask {gpu}")
        where = {"pci_domain_id": 0, "pci_bus_id": 59 + gpu, "pci_device_id": 0}
        return SimpleNamespace(name="Fake", uuid=f"GPU-{gpu:04}", **where)


def placed(rank: int, gpu: int | None, host: str = "a", name: str = "Fake", pci: str = "") -> Placement:
    if gpu is None:
        return Placement(rank, host, 1, 4)
    return Placement(rank, host, 1, 4, gpu, name, f"U{gpu}", pci)


@pytest.mark.parametrize(
    ("rank", "local_clients", "visible", "server_gpu", "wanted"),
    [
        (1, [1, 2, 3], 4, False, 0),  # rank 0's slot on this host does not shift the clients
        (3, [1, 2, 3], 4, False, 2),
        (6, [4, 5, 6], 4, False, 2),  # the second host starts with its GPU 0 again
        (3, [1, 2, 3], 2, False, 0),  # more ranks than GPUs: in turn
        (5, [5], 1, False, 0),  # --gpus-per-task: each rank sees one
        (0, [1, 2, 3], 4, False, None),  # the server stays on the CPU …
        (0, [1, 2, 3], 4, True, 3),  # … unless asked: the free one
        (0, [1, 2, 3, 4], 4, True, 0),  # none is free: it shares
        (0, [0], 1, False, 0),  # alone it trains
        (1, [1], 0, False, None),
    ],
)
def test_which_gpu(
    rank: int, local_clients: list[int], visible: int, server_gpu: bool, wanted: int | None
) -> None:
    assert pick_gpu(rank, local_clients, visible, server_gpu) == wanted


@pytest.mark.parametrize("uuids", ["2,3", "GPU-8932f937,GPU-1b8c4e8d", "MIG-GPU-8932f937/1/0"])
def test_the_gpu_is_set_before_anything_else_is_asked(monkeypatch: pytest.MonkeyPatch, uuids: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids)  # in whatever form: CUDA's to read
    cuda = FakeCuda(monkeypatch, visible=2)
    views = [["a", 2]] * 4
    found = devices.place(Config(), FakeComm(2, views))
    assert cuda.asked == ["set 1", "ask 1"]
    assert (found.gpu, found.gpu_name, found.gpu_uuid) == (1, "Fake", "GPU-0001")
    assert found.gpu_pci == "00:3c:00"
    assert found.device == torch.device("cuda", 1)
    assert "GPU 1 (Fake, GPU-0001), 1 thread" in found.line()


def test_neither_the_server_nor_device_cpu_touches_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, visible=2)
    views = [["a", 2]] * 4
    assert devices.place(Config(), FakeComm(0, views)).gpu is None
    assert devices.place(Config(device="cpu"), FakeComm(1, [["a", 0]] * 4)).gpu is None
    assert cuda.asked == []


def test_a_gpu_that_cannot_be_used_is_told_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """In MIG mode the driver counts cards of which CUDA takes one slice; or a card is sick."""

    def sick(gpu: int) -> None:
        raise torch.cuda.DeferredCudaCallError("CUDA error: invalid device ordinal\nCompile with ...")

    FakeCuda(monkeypatch, visible=2)
    monkeypatch.setattr("torch.cuda.set_device", sick)
    with pytest.raises(UserError, match=r"rank 2 cannot use GPU 1 of 2 on .*invalid device ordinal") as told:
        devices.place(Config(), FakeComm(2, [["a", 2]] * 3))
    assert told.value.agreed
    with pytest.raises(UserError, match="rank 2 cannot use GPU 1"):  # the server, which asks for none
        devices.place(Config(), FakeComm(0, [["a", 2]] * 3, "rank 2 cannot use GPU 1"))


def test_gpus_on_some_hosts_only_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch, visible=2)
    with pytest.raises(UserError, match=r"GPUs on a, none on b: .* or --device cpu"):
        devices.place(Config(), FakeComm(1, [["a", 2], ["a", 2], ["b", 0]]))
    with pytest.raises(UserError, match="torch sees no GPU on b"):
        devices.place(Config(device="cuda"), FakeComm(1, [["a", 2], ["a", 2], ["b", 0]]))
    # the server's host may have none
    assert devices.place(Config(), FakeComm(1, [["b", 0], ["a", 2], ["a", 2]])).gpu == 0


def test_auto_takes_nccl_only_where_each_client_rank_has_its_own_gpu() -> None:
    own = [placed(0, None), placed(1, 0), placed(2, 1), placed(3, 0, "b")]
    assert choose("auto", own, range(1, 4)) == "nccl"
    assert choose("torch", own, range(1, 4)) == "nccl"
    assert choose("mpi", own, range(1, 4)) == "mpi"
    shared = [placed(0, None), placed(1, 0), placed(2, 1), placed(3, 0)]
    assert choose("auto", shared, range(1, 4)) == "mpi"
    with pytest.raises(UserError, match=r"ranks 1, 3 share the GPU U0 of a.* --transport mpi"):
        choose("torch", shared, range(1, 4))
    # slices of one card have UUIDs of their own, but NCCL takes them for one GPU
    slices = [placed(0, None), placed(1, 0, pci="00:3b:00"), placed(2, 1, pci="00:3b:00")]
    assert choose("auto", slices, range(1, 3)) == "mpi"
    with pytest.raises(UserError, match=r"ranks 1, 2 share the GPU U0, U1 of a"):
        choose("torch", slices, range(1, 3))
    # the server may share a client rank's GPU: it is no member of the group
    server = [placed(0, 0), placed(1, 0), placed(2, 1)]
    assert choose("torch", server, range(1, 3)) == "nccl"
    cpus = [placed(rank, None) for rank in range(3)]
    assert choose("auto", cpus, range(1, 3)) == "mpi"
    assert choose("torch", cpus, range(1, 3)) == "gloo"
    # one client rank has nobody to talk with over NCCL
    assert choose("auto", own[:2], range(1, 2)) == "mpi"


def test_remarks_on_idle_cores_and_mixed_gpus() -> None:
    (told,) = remarks([placed(0, None)], range(1))
    assert told == "3 of 4 cores lie idle: mpirun -n 5 gives the same result sooner"
    assert remarks([placed(0, None), placed(1, None)], range(1, 2)) == []
    mixed = [placed(0, None), placed(1, 0, name="H200"), placed(2, 1, name="A100")]
    assert remarks(mixed, range(1, 3)) == [
        "GPUs of several kinds (A100, H200): another assignment may round otherwise"
    ]


class LateStaging(Staging):
    """Copies happen as late as a GPU may do them: when someone waits for them."""

    def __init__(self, chunk_bytes: int) -> None:
        super().__init__(torch.device("cpu"), chunk_bytes)
        self.queue: list[tuple[Tensor, Tensor, int]] = []
        self.at_once = 0  # the most copies that were under way together
        self._done = [SimpleNamespace(synchronize=lambda slot=slot: self.wait_for(slot)) for slot in (0, 1)]
        everything = SimpleNamespace(wait_stream=lambda _: self.wait_for(None))
        nothing = SimpleNamespace(wait_stream=lambda _: None)
        self._stream = nothing
        self._api = SimpleNamespace(current_stream=lambda: everything)

    def _copy(self, to: Sequence[Tensor], source: Sequence[Tensor], i: int) -> None:
        self.queue.append((to[i], source[i], i % 2))
        self.at_once = max(self.at_once, len(self.queue))

    def wait_for(self, slot: int | None) -> None:
        """The stream is a queue: all up to the slot's last copy are done, and no more."""
        last = max((j for j, entry in enumerate(self.queue) if slot in (None, entry[2])), default=-1)
        for to, source, _ in self.queue[: last + 1]:
            to.copy_(source)
        del self.queue[: last + 1]


@pytest.mark.parametrize("staging", [Staging(torch.device("cpu"), 32), LateStaging(32)])
def test_staging_reads_and_writes_each_chunk_once(staging: Staging) -> None:
    values = torch.arange(19, dtype=torch.float64)  # 4 doubles a chunk: 5 chunks
    chunks = values.clone().split(4)
    # as a client rank in a reduce
    read = [host.clone() for host in staging.through(chunks, read=True, write=False)]
    assert torch.equal(torch.cat(read), values)
    # as a client rank in a broadcast
    written = torch.zeros_like(values)
    for host, part in zip(staging.through(written.split(4), read=False, write=True), chunks, strict=True):
        host.copy_(part)
    assert torch.equal(written, values)
    # as the server in a reduce, in place
    both = values.clone()
    for host in staging.through(both.split(4), read=True, write=True):
        host += 100
    assert torch.equal(both, values + 100)
    if isinstance(staging, LateStaging):
        assert staging.at_once >= 2  # while MPI works on one chunk, the next is under way


def test_the_probe_runs_mpi_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_probe.probe(torch.device("cpu")) is None
    crash = SimpleNamespace(returncode=-11, stdout="", stderr="")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: crash)
    error = cuda_probe.probe(torch.device("cuda", 0))
    assert error is not None
    assert "MPI crashed on memory of cuda:0 (SIGSEGV); leave the flag away" in str(error)
