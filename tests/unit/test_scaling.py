"""The scaling command's points, the α–β fit and its prediction; by hand."""

import json
from pathlib import Path

import pytest

from fedproc_mpi.errors import UserError
from fedproc_mpi.scaling import main as scaling
from fedproc_mpi.studies.alphabeta import Fit, Sample, fit, read_samples, steps
from fedproc_mpi.studies.points import Measured, Size, plan
from fedproc_mpi.studies.scaling_report import model_section, plot_model, plot_scaling, predicted, section

SIZE = Size(clients=8, samples=20, rounds=3, local_epochs=1)


def test_the_tree_is_as_deep_as_it_must_be() -> None:
    assert [steps(ranks) for ranks in (1, 2, 3, 4, 5, 1024, 1025)] == [0, 1, 2, 2, 3, 10, 11]


def test_the_fit_finds_what_made_the_samples() -> None:
    """α = 3 µs, β = 2 ns per byte; then all times 10 % longer at the sizes that are kept for the error."""
    sizes = [2**k for k in range(10, 22)]
    made = [Sample(p, n, steps(p) * (3e-6 + 2e-9 * n)) for p in (2, 3, 9) for n in sizes]
    found = fit(made)
    assert found.alpha == pytest.approx(3e-6, rel=1e-6)
    assert found.beta == pytest.approx(2e-9, rel=1e-6)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert found.seconds(1, 10**6) == 0
    assert found.seconds(5, 1000) == pytest.approx(3 * (3e-6 + 2e-6))
    unseen = set(sizes[1::2])
    longer = [Sample(s.ranks, s.size, s.seconds * (1.1 if s.size in unseen else 1)) for s in made]
    assert fit(longer).error == pytest.approx(1 - 1 / 1.1, abs=1e-6)
    with pytest.raises(ValueError, match="four samples"):
        fit(made[:3])


def test_points(tmp_path: Path) -> None:
    def of(axis: str) -> list[tuple[int, int, int]]:
        return [(p.client_ranks, p.clients, p.cohort) for p in plan(axis, [1, 2, 4], SIZE, tmp_path)]

    assert of("strong") == [(1, 8, 8), (2, 8, 8), (4, 8, 8)]
    assert of("weak") == [(1, 8, 8), (2, 16, 16), (4, 32, 32)]
    assert of("clients") == [(4, 32, 8), (4, 128, 8), (4, 512, 8), (4, 128, 32), (4, 128, 128)]
    point = plan("clients", [1, 2], SIZE, tmp_path)[1]
    assert (point.ranks, point.run.config.sample_rate) == (3, 8 / 128)
    assert point.data[:3] == ["synthetic", "--clients", "128"]


def of_round(tmp_path: Path, place: int, seconds: float, train: float) -> Measured:
    point = plan("strong", [1, 2, 4], SIZE, tmp_path)[place]
    phases = {
        "train": train,
        "evaluate": 0.5,
        "server": 0.25,
        "checkpoint": 0.05,
        "reduce": 0.1,
        "broadcast": 0.1,
    }
    return Measured(point, seconds, phases, 1.0, 1000, 2000, 700.0, 5)


def test_prediction_and_tables_by_hand(tmp_path: Path) -> None:
    """8 clients in 8 s on one rank: on 3 ranks 3 of them in turn, 3 s; on 1,024 ranks 1 s."""
    strong = [
        of_round(tmp_path, 0, 9.0, 8.0),
        of_round(tmp_path, 1, 6.0, 4.0),
        of_round(tmp_path, 2, 3.0, 2.0),
    ]
    fits = {"broadcast": Fit(1e-3, 1e-6, 0.1), "reduce": Fit(2e-3, 1e-6, 0.2)}
    # 3 client ranks are 4 processes, 2 steps: 2·(1 ms + 1 ms) + 2·(2 ms + 2 ms) = 12 ms
    assert predicted(strong[0], 3, fits) == pytest.approx(3 + 0.5 / 3 + 0.3 + 0.012)
    # 1,025 processes, 11 steps: 66 ms
    assert predicted(strong[0], 1024, fits) == pytest.approx(1 + 0.5 / 1024 + 0.3 + 0.066)
    table = section("strong", strong, "here", "").table
    assert table is not None
    assert [row[4:6] for row in table.rows] == [["1.00", "100"], ["1.50", "75"], ["3.00", "75"]]
    table = section("weak", strong, "here", "").table
    assert (
        table is not None
    )  # as if each had its own share of work: three times as fast with four times the work
    assert [row[4:6] for row in table.rows] == [["1.00", "100"], ["3.00", "150"], ["12.00", "300"]]
    told = model_section(strong, fits, "here", "")
    assert any("PREDICTION" in sentence for sentence in told.sentences)
    assert told.table is not None
    # On two: 4 + 0.25 + 0.3 + 12 ms = 4.562 s, 24 % below the 6 s.
    assert next(row for row in told.table.rows if row[0] == "2") == ["2", "4.5620", "6.0000", "−24"]
    for path in (
        plot_scaling("strong", strong, tmp_path / "a.png"),
        plot_model(strong, fits, tmp_path / "b.png"),
    ):
        assert path.stat().st_size > 5000


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["storng"], "storng: no such axis; known: strong, weak, clients"),
        (["--client-ranks", "0"], "--client-ranks 0: must be whole numbers from 1"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["strong", "--out", str(tmp_path), "--flags=--lrr 1"], "--lrr is no flag"),
    ):
        assert scaling(words) == 2
        assert told in capsys.readouterr().err
    (tmp_path / "messages-2.json").write_text(json.dumps({"ranks": 2}))
    with pytest.raises(UserError, match="no measured messages"):
        read_samples([tmp_path / "messages-2.json"])
