"""The compare command: means, paired tests, groups, sites, pictures, and what is refused.

Expected figures are worked out by hand. Two-sided p of t with 2 degrees of freedom is 1 − t/√(t² + 2).
"""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedproc_mpi import Config, run
from fedproc_mpi.__main__ import main as fedproc_mpi
from fedproc_mpi.compare import main as compare
from fedproc_mpi.report.curves import Curve, accuracy_curve, plot_curves
from fedproc_mpi.report.paired import against_best, holm, mean_std, paired_difference
from fedproc_mpi.report.tables import Section, Table
from tests.support.finished_runs import make_run

T_975_2 = 4.302653  # from a table of Student's t


def make_seeds(top: Path, algorithm: str, accuracies: Sequence[float], **more: Any) -> list[str]:
    """Runs with seeds 0, 1, …"""
    return [
        str(make_run(top / f"{algorithm}-{seed}", accuracy, algorithm, seed, **more))
        for seed, accuracy in enumerate(accuracies)
    ]


def compared(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of what the command says."""
    assert compare([str(word) for word in words]) == 0
    said = capsys.readouterr()
    assert not said.err
    return said.out.splitlines()


def cells(lines: Sequence[str], first: str) -> list[list[str]]:
    """The cells of all lines of tables that begin with a name; two spaces or more part them."""
    found = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return [row for row in found if row and row[0] == first]


# ---- statistics ------------------------------------------------------------------------------------------


def test_differences_of_1_2_and_3_points() -> None:
    """Mean 2, sample standard deviation 1, half width t/√3; t = 2√3."""
    found = paired_difference({0: 0.91, 1: 0.93, 2: 0.95}, {2: 0.92, 0: 0.90, 1: 0.91})
    half = 0.01 * T_975_2 / math.sqrt(3)
    assert found.n == 3
    assert found.mean == pytest.approx(0.02)
    assert (found.low, found.high) == (pytest.approx(0.02 - half), pytest.approx(0.02 + half))
    assert found.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14))


def test_mean_and_sample_deviation() -> None:
    assert mean_std([1.0, 2.0, 3.0]) == (2.0, 1.0)  # the population's would be 0.816
    assert mean_std([0.5]) == (0.5, None)


@pytest.mark.parametrize(
    ("a", "b", "n", "mean"),
    [
        ({0: 0.5}, {1: 0.5}, 0, None),
        ({0: 0.5, 1: 0.7}, {1: 0.6, 2: 0.9}, 1, 0.1),  # seed 1 alone is in both
        ({0: 0.5, 1: 0.7}, {0: 0.4, 1: 0.6}, 2, 0.1),  # no spread: it would be certain beyond all measure
        ({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7}, 2, 0.0),
    ],
)
def test_where_there_is_no_test(a: dict[int, float], b: dict[int, float], n: int, mean: float | None) -> None:
    found = paired_difference(a, b)
    assert found.n == n
    assert found.mean == (mean if mean is None else pytest.approx(mean))
    assert (found.low, found.high, found.p, found.holds) == (None, None, None, False)


def test_holm() -> None:
    """The smallest times 3, the next times 2, the last times 1, and never less than one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_best_is_corrected_for_all_pairs() -> None:
    """a − b: 1.9, 2.0, 2.1; a − c: 1, 2, 3; so b − c: −0.9, 0, 0.9 with p = 1. Three pairs in all."""
    a = {0: 0.80, 1: 0.85, 2: 0.90}
    b = {0: 0.781, 1: 0.83, 2: 0.879}
    c = {0: 0.79, 1: 0.83, 2: 0.87}
    best, found, tests = against_best([b, a, c])
    assert (best, tests, sorted(found)) == (1, 3, [0, 2])
    t_ab = 2.0 / (0.1 / math.sqrt(3))
    assert found[0].mean == pytest.approx(0.02)
    assert found[0].p_holm == pytest.approx(3 * (1 - t_ab / math.sqrt(t_ab**2 + 2)))
    assert found[2].p_holm == pytest.approx(2 * (1 - math.sqrt(12) / math.sqrt(14)))
    assert (found[0].holds, found[2].holds) == (True, False)


# ---- tables ----------------------------------------------------------------------------------------------


def test_a_table_as_text_markdown_and_csv() -> None:
    table = Table(["name", "n"], [["a|b_c", "1"], ["d, e", "22"]], "lr", frozenset({(1, 1)}))
    assert table.text() == "name      n\n-----  ----\na|b_c     1\nd, e   *22*"
    assert table.markdown() == "| name | n |\n| --- | --: |\n| a\\|b\\_c | 1 |\n| d, e | **22** |"
    assert table.csv() == 'name,n\na|b_c,1\n"d, e",22\n'


def test_a_long_name_in_the_header_takes_several_lines() -> None:
    table = Table(["", "fedavg --rounds 50 --lr-schedule cosine"], [["East", "1.0"]], "lr")
    assert table.text().splitlines() == [
        "        fedavg --rounds 50",
        "      --lr-schedule cosine",
        "----  --------------------",
        "East                   1.0",
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="as long as"):
        Table(["a", "b"], [["1"]], "lr")


def test_a_section_is_escaped_and_has_its_picture() -> None:
    section = Section("St_1", sentences=["a*b", "two\nlines"], picture="x.png")
    assert section.markdown() == "## St\\_1\n\n- a\\*b\n- two lines\n\n![St\\_1](x.png)"


# ---- what the command says -------------------------------------------------------------------------------


def test_means_over_seeds_and_no_bold_where_the_interval_spans_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = make_seeds(tmp_path, "fedproc", [0.91, 0.93, 0.95]) + make_seeds(
        tmp_path, "moon", [0.90, 0.91, 0.92]
    )
    lines = compared(runs, capsys)
    assert cells(lines, "fedproc") == [["fedproc", "3", "93.0 ± 2.0", "94.0 ± 2.0"]]
    table, test = cells(lines, "moon")
    assert table == ["moon", "3", "91.0 ± 1.0", "92.0 ± 1.0"]
    # 2 ± 4.3027/√3 = 2 ± 2.484
    assert test == ["moon", "3", "+2.0", "−0.5 to 4.5", "0.074", "not told apart by 3 seeds"]
    assert not any("*" in line for line in lines)
    assert "best, chosen on test" in lines[1]


def test_the_best_is_bold_where_it_beats_every_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 ± 4.3027 · 0.1/√3 = 1.75 to 2.25 points; in Markdown too."""
    runs = make_seeds(tmp_path, "fedavg", [0.781, 0.83, 0.879]) + make_seeds(
        tmp_path, "moon", [0.80, 0.85, 0.90]
    )
    lines = compared(runs, capsys)
    assert cells(lines, "moon")[0][2] == "*85.0 ± 5.0*"
    assert cells(lines, "fedavg")[0][2] == "83.0 ± 4.9"
    assert cells(lines, "fedavg")[1][5] == "moon is 1.8 to 2.2 points better, 95 %"
    # A third that is not told apart from the best takes the bold away.
    lines = compared(runs + make_seeds(tmp_path, "fedprox", [0.79, 0.83, 0.87]), capsys)
    assert cells(lines, "moon")[0][2] == "85.0 ± 5.0"
    assert cells(lines, "fedavg")[1][5] == "moon is 1.8 to 2.2 points better, 95 %"


def test_an_interval_without_zero_that_the_correction_takes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """a − b: 1.5, 2, 2.5 points: t = 2√12, p = 0.0202, times 3 = 0.0606. Half width 0.5 · t/√3 = 1.242."""
    runs = make_seeds(tmp_path, "moon", [0.80, 0.85, 0.90])
    runs += make_seeds(tmp_path, "fedavg", [0.785, 0.83, 0.875])
    runs += make_seeds(tmp_path, "fedprox", [0.80, 0.83, 0.86])
    words = "not told apart by 3 seeds after the correction"
    assert cells(compared(runs, capsys), "fedavg")[1] == ["fedavg", "3", "+2.0", "0.8 to 3.2", "0.061", words]


def test_one_seed_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = compared(make_seeds(tmp_path, "fedavg", [0.8]) + make_seeds(tmp_path, "moon", [0.9]), capsys)
    assert cells(lines, "fedavg")[0] == ["fedavg", "1", "80.0 ± –", "81.0 ± –"]
    assert not any("no partner" in line for line in lines)
    words = "one seed each: no test is possible"
    assert cells(lines, "fedavg")[1] == ["fedavg", "1", "+10.0", "–", "–", words]


def test_seeds_that_do_not_pair_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_seeds(tmp_path, "moon", [0.91, 0.93, 0.95])
    runs += [str(make_run(tmp_path / f"b{s}", 0.5 + 0.1 * s, "fedavg", s)) for s in (1, 2, 5)]
    lines = compared(runs, capsys)
    assert cells(lines, "fedavg")[1][:3] == ["fedavg", "2", "+29.0"]  # 33 and 25 points
    assert f"{tmp_path / 'moon-0'} (seed 0) has no partner in: fedavg." in lines
    assert f"{tmp_path / 'b5'} (seed 5) has no partner in: moon." in lines
    assert sum("no partner" in line for line in lines) == 2


def test_no_seed_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / "a", 0.5), make_run(tmp_path / "b", 0.6, "moon", seed=1)]
    lines = compared(list(map(str, runs)), capsys)
    words = "no seed in common: no test is possible"
    assert cells(lines, "fedavg")[1] == ["fedavg", "0", "–", "–", "–", words]
    assert f"{tmp_path / 'b'} (seed 1) has no partner in: fedavg." in lines


def test_groups_differ_by_settings_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What most rows share is told once. mu is compared among moon's runs alone; execution flags never."""
    runs = [
        make_run(tmp_path / "a", 0.1, "fedavg", checkpoint_every=5, run_dir="x"),
        make_run(tmp_path / "b", 0.3, "fedavg", seed=1),
        make_run(tmp_path / "c", 0.4, "fedavg", rounds=50),
        make_run(tmp_path / "d", 0.5, "moon", mu=1.0),
        make_run(tmp_path / "e", 0.6, "moon", mu=5.0),
        make_run(tmp_path / "f", 0.7, "fedprox", mu=0.01, normalize_z=True),
    ]
    lines = compared(list(map(str, runs)), capsys)
    start = lines.index(next(line for line in lines if line.startswith("---"))) + 1
    rows = [line.split("  ")[0] for line in lines[start : start + 5]]
    assert rows == ["fedavg", "fedavg --rounds 50", "moon --mu 1.0", "moon --mu 5.0", "fedprox --normalize-z"]
    assert cells(lines, "fedavg")[0][1:3] == ["2", "20.0 ± 14.1"]
    assert "Where a row does not name it: --rounds 15, --no-normalize-z." in lines


def test_runs_of_other_data_are_neither_pooled_nor_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        make_run(tmp_path / "a", 0.5),
        make_run(tmp_path / "b", 0.9, seed=1, fingerprint="cd" * 32),
        make_run(tmp_path / "c", 0.6, "moon"),
    ]
    lines = compared(list(map(str, runs)), capsys)
    assert cells(lines, "fedavg --shards x (abababab)")[0][1:3] == ["1", "50.0 ± –"]
    assert cells(lines, "fedavg --shards x (cdcdcdcd)")[0][1:3] == ["1", "90.0 ± –"]
    place = lines.index("fedavg --shards x (cdcdcdcd) against each other row, on x (cdcdcdcd)")
    assert lines[place + 1] == "Nothing else ran on this data: no test is possible."
    assert "moon --shards x (abababab) against each other row, on x (abababab)" in lines


def test_own_algorithm_files_of_one_name_and_changed_contents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record's hash tells two versions of a file apart, and the path two files of one name."""
    runs = [
        make_run(tmp_path / "a", 0.5, "one/mine.py", files={"one/mine.py": "1" * 64}),
        make_run(tmp_path / "b", 0.6, "one/mine.py", files={"one/mine.py": "2" * 64}, seed=1),
        make_run(tmp_path / "c", 0.7, "two/mine.py", files={"two/mine.py": "3" * 64}),
    ]
    lines = compared(list(map(str, runs)), capsys)
    assert cells(lines, "one/mine.py (contents of one/mine.py 11111111)")
    assert cells(lines, "one/mine.py (contents of one/mine.py 22222222)")
    assert cells(lines, "two/mine.py")


def test_columns_follow_what_the_runs_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Balanced accuracy in some runs alone; a best accuracy by validation is no warning's business."""
    more = {
        "balanced_accuracy": 0.7,
        "client_accuracy_mean": 0.6,
        "client_accuracy_worst_decile": 0.4,
        "best_chosen_on": "validation",
        "accuracy_std": 0.1,
    }
    runs = [make_run(tmp_path / "a", 0.8, "solo", summary=more)]
    lines = compared(list(map(str, runs)), capsys)
    names = ["runs", "final (test)", "balanced", "mean of clients", "worst decile", "validation"]
    assert lines[1].strip() == "best, chosen on"
    assert cells(lines, "runs") == [names]
    assert cells(lines, "solo")[0][2:] == ["80.0 ± –", "70.0 ± –", "60.0 ± –", "40.0 ± –", "81.0 ± –"]
    assert not any("too good" in line for line in lines)
    assert any(line.startswith("No global model: solo.") for line in lines)
    runs.append(make_run(tmp_path / "b", 0.9))
    lines = compared(list(map(str, runs)), capsys)
    assert cells(lines, "fedavg")[0][2:] == ["90.0 ± –", "–", "–", "–", "91.0 ± –"]
    assert lines[1].strip() == "best, chosen on test or"
    assert any("too good" in line for line in lines)


# ---- sites -----------------------------------------------------------------------------------------------


def site_runs(top: Path) -> list[str]:
    """Two seeds of SOLO and FedProc. East: 50 % alone and 60 % together, South 70 and 65, West unchanged."""
    found = []
    for seed, shift in ((0, -0.05), (1, 0.05)):
        alone = {"East": 0.5 + shift, "South": 0.7 + shift, "West": 0.8}
        together = {"East": 0.6 + shift, "South": 0.65 + shift, "West": 0.8, "North": None}
        found.append(make_run(top / f"s{seed}", 0.4, "solo", seed, {"client_accuracy": alone}))
        found.append(make_run(top / f"p{seed}", 0.7 + shift, "fedproc", seed, {"client_accuracy": together}))
    return list(map(str, found))


def test_by_site_and_who_gains_against_solo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = compared([*site_runs(tmp_path), str(make_run(tmp_path / "old", 0.6))], capsys)
    assert cells(lines, "site") == [["site", "solo", "fedproc"]]
    assert cells(lines, "East") == [["East", "50.0", "60.0"]]
    assert cells(lines, "South") == [["South", "70.0", "65.0"]]
    assert not cells(lines, "North")
    expected = (
        "fedproc against solo: of 3 sites 1 gain: East +10.0; 1 lose: South −5.0; 1 as before "
        "(points, mean of 2 seeds, no test)."
    )
    assert expected in lines


def test_a_site_that_a_group_lacks_is_a_dash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        make_run(tmp_path / "a", 0.5, summary={"client_accuracy": {"East": 0.5}}),
        make_run(tmp_path / "b", 0.5, "moon", summary={"client_accuracy": {"East": 0.6, "West": 0.7}}),
    ]
    lines = compared(list(map(str, runs)), capsys)
    assert cells(lines, "West") == [["West", "–", "70.0"]]
    assert not any("against solo" in line for line in lines)


def test_of_many_sites_the_quantiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """21 sites with 0, 1, … 20 %: the 10 % quantile is 2, the median 10. All of them are in sites.csv."""
    accuracy = {f"c{i}": i / 100 for i in range(21)}
    path = make_run(tmp_path / "a", 0.5, summary={"client_accuracy": accuracy})
    lines = compared([str(path)], capsys)
    rows = [
        cells(lines, name)[0][1] for name in ("of 21 sites", "lowest", "10 %", "median", "90 %", "highest")
    ]
    assert rows == ["fedavg", "0.0", "2.0", "10.0", "18.0", "20.0"]
    assert not cells(lines, "c3")
    assert compare([str(path), "--out", str(tmp_path / "out")]) == 0
    assert len((tmp_path / "out" / "sites.csv").read_text().splitlines()) == 22


# ---- files -----------------------------------------------------------------------------------------------


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_out_writes_tables_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    said = compared([*site_runs(tmp_path), "--out", str(out)], capsys)
    names = ["compare.md", "compare.csv", "sites.csv", "compare.png", "sites.png"]
    assert said == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    text = (out / "compare.md").read_text()
    assert "| solo | 2 | 40.0 ± 0.0 |" in text
    assert "![Accuracy, %](compare.png)" in text
    assert "| East | 50.0 | 60.0 |" in text
    assert "- fedproc against solo: of 3 sites" in text
    solo, fedproc = table_of(out / "compare.csv")
    assert (solo["group"], solo["seeds"], solo["final_accuracy_mean"]) == ("solo", "0 1", "0.400000")
    assert (solo["best_group"], solo["pairs"], solo["best_minus_this"]) == ("fedproc", "2", "0.300000")
    # 0.65 and 0.75: a deviation of 0.1/√2
    assert fedproc["final_accuracy_std"] == f"{0.1 / math.sqrt(2):.6f}"
    assert fedproc["balanced_accuracy_mean"] == ""
    sites = {(row["group"], row["site"]): row["accuracy_mean"] for row in table_of(out / "sites.csv")}
    assert len(sites) == 6
    assert sites["fedproc", "South"] == "0.650000"
    for name in ("compare.png", "sites.png"):
        assert len(np.unique(np.asarray(Image.open(out / name).convert("L")))) > 20


def test_without_sites_there_is_no_second_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert compare([*make_seeds(tmp_path, "fedavg", [0.5, 0.6]), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["compare.csv", "compare.md", "compare.png"]


def test_names_that_matplotlib_would_read_otherwise(tmp_path: Path) -> None:
    """Dollar signs, long names, more sites than rows, a run without any lines."""
    sites = {f"$x_{i}^$": i / 30 for i in range(30)}
    runs = [
        make_run(tmp_path / "a", 0.5, "own/$m^$.py", summary={"client_accuracy": sites}),
        make_run(tmp_path / "b", 0.5, f"own/{'long' * 60}.py", summary={"client_accuracy": {"$a^$": 0.5}}),
        make_run(tmp_path / "c", 0.5, fingerprint="cd" * 32, summary={"client_accuracy": {"$a^$": 0.5}}),
    ]
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    assert compare([*map(str, runs), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "sites.png").stat().st_size > 1000


def test_a_name_with_an_underscore_first_is_in_the_legend(tmp_path: Path) -> None:
    """Two names, two pictures: matplotlib leaves such names out, and the pictures would be the same."""
    pictures = [
        plot_curves([Curve(name, [1, 2], [[0.1, 0.2]])], tmp_path / name) for name in ("_a.png", "_b.png")
    ]
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


def line(t: int, **values: float | None) -> dict[str, Any]:
    return {"round": t, **values}


def test_a_curve_is_over_the_rounds_that_all_runs_evaluated() -> None:
    one = [line(0, accuracy=0.1), line(1, accuracy=None), line(2, accuracy=0.3)]
    two = [line(0), line(1, accuracy=0.5), line(2, accuracy=0.6)]
    curve = accuracy_curve("x", [one, two])
    assert curve is not None
    assert (curve.rounds, curve.values_RN, curve.validation) == ([3], [[0.3], [0.6]], False)
    assert accuracy_curve("x", [one, []]) is None


def test_a_curve_is_the_validation_s_where_the_test_set_waits_for_the_end() -> None:
    lines = [line(0, val_accuracy=0.1), line(1, val_accuracy=0.2, accuracy=0.3)]
    curve = accuracy_curve("x", [lines])
    assert curve is not None
    assert (curve.rounds, curve.values_RN, curve.validation) == ([1, 2], [[0.1, 0.2]], True)


# ---- what is left out or refused -------------------------------------------------------------------------


def test_what_is_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = make_run(tmp_path / "good", 0.5)
    again = make_run(tmp_path / "again", 0.55)
    unfinished, damaged, nothing, old = (make_run(tmp_path / name, 0.9) for name in "udno")
    (unfinished / "summary.json").unlink()
    (damaged / "summary.json").write_text('{"final_acc')
    (nothing / "summary.json").write_text('{"model_sha256": "0", "final_accuracy": null}')
    (old / "config.json").write_text(json.dumps({"algorithm": "fedavg", "data": {}}))
    (tmp_path / "link").symlink_to(good)
    paths = [good, again, unfinished, damaged, nothing, old, tmp_path / "link"]
    lines = compared(list(map(str, paths)), capsys)
    assert cells(lines, "fedavg") == [["fedavg", "1", "50.0 ± –", "51.0 ± –"]]
    told = lines[lines.index("Left out") + 1 :]
    assert len(told) == 6
    assert f"{unfinished} is left out: not finished" in told
    assert any(
        text.startswith(f"{damaged} is left out: ") and "cannot be read as JSON" in text for text in told
    )
    assert any(text.startswith(f"{nothing} is left out: ") and "no final_accuracy" in text for text in told)
    assert any(text.startswith(f"{old} is left out: ") and "which data" in text for text in told)
    assert f"{tmp_path / 'link'} is named twice, and counts once" in told
    repeats = f"{again} repeats {good} (same settings, data and seed), and counts once"
    assert f"{repeats}, though it ends at 55.00 % and the first at 50.00 %" in told
    out = tmp_path / "out"
    assert f"{unfinished} is left out: not finished" in compared(
        [*map(str, paths), "--out", str(out)], capsys
    )
    assert "is left out: not finished" in (out / "compare.md").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["TOP/run", "TOP"], "is no run directory: it has no config.json"),
        (["TOP/run", "TOP/none"], "none is no run directory"),
        (["TOP/open"], "no finished run among 1: TOP/open is left out: not finished"),
        (["TOP/run", "--out", "TOP/file"], "TOP/file: File exists"),
        (["TOP/run", "--uot", "x"], "--uot is no flag of compare; did you mean --out?"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_what_compare_refuses(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", 0.5)
    (make_run(tmp_path / "open", 0.5) / "summary.json").unlink()
    (tmp_path / "file").write_text("")
    assert compare([word.replace("TOP", str(tmp_path)) for word in words]) == 2
    error = capsys.readouterr().err
    assert told.replace("TOP", str(tmp_path)) in error
    assert error.startswith("fedproc_mpi.compare: ")
    assert error.count("\n") == 1


def test_really_trained_runs(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures from the runs' own summaries; SCAFFOLD's default learning rate differs, and is named."""
    final: dict[str, list[float]] = {}
    for algorithm in ("fedavg", "scaffold"):
        for seed in (0, 1):
            path = tmp_path / "runs" / f"{algorithm}-{seed}"
            quick: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "model": "small-cnn", "batch_size": 64}
            config = Config.create(
                algorithm=algorithm, shards=str(shards), seed=seed, run_dir=str(path), **quick
            )
            result = run(config)
            assert result is not None
            final.setdefault(algorithm, []).append(100 * result.summary["final_accuracy"])
    capsys.readouterr()
    paths = [str(path) for path in sorted((tmp_path / "runs").iterdir())]
    assert fedproc_mpi(["compare", *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    for label, values in (("fedavg --lr 0.03", final["fedavg"]), ("scaffold --lr 0.01", final["scaffold"])):
        mean, std = np.mean(values), np.std(values, ddof=1)
        assert cells(lines, label)[0][1:3] == ["2", f"{mean:.1f} ± {std:.1f}"]
    assert not any("Left out" in line for line in lines)


def test_started_by_mpirun_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert compare([str(make_run(tmp_path / "a", 0.5))]) == 2
    assert "one process does this, and 4 were started" in capsys.readouterr().err
