"""Folders of pictures as people have them: what is surely wrong is refused, the rest is counted."""

import csv
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.__main__ import main
from data_prep.heldout import stratified_split
from data_prep.sources.groups import groups_of
from fedproc_mpi.errors import UserError
from tests.unit.test_data_prep_sources import make, refused

SMALL = ("--image-size", 8, "--channels", 1)


def images(folder: Path, count: int = 12, high: int = 256, dtype: type = np.uint8, first: int = 0) -> None:
    """Noise, in files 00.png …"""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list("/".join(folder.parts[-2:]).encode()))  # not of the temporary folder
    for i in range(first, first + count):
        Image.fromarray(rng.integers(0, high, (9, 9)).astype(dtype)).save(folder / f"{i:02}.png")


def folders(capsys: pytest.CaptureFixture[str], root: Path, *flags: object) -> str:
    out = root.parent / "x.h5"
    return refused(capsys, "folders", "--root", root, *SMALL, *flags, "--out", out)


@pytest.mark.parametrize("halves", [("train", "val", "test"), ("Training", "Testing"), ("TRAIN", "valid")])
@pytest.mark.parametrize("inside", ["", "site A"])
def test_halves_are_no_sites(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, halves: tuple[str, ...], inside: str
) -> None:
    root = tmp_path / "xray"
    for half in halves:
        for label in ("NORMAL", "PNEUMONIA"):
            images(root / inside / half / label)
    if inside:
        images(root / "site B" / "NORMAL")
    said = folders(capsys, root)
    where = root / inside
    assert f"--root {where / halves[0]} --test-root {where / halves[-1]}" in said
    if not inside:
        root, test = where / halves[0], where / halves[-1]
        with make(tmp_path, "folders", "--root", root, "--test-root", test, *SMALL, "--clients", 2) as shards:
            assert (sum(shards.sizes), len(shards.test_set)) == (24, 24)
            assert shards.header.class_names == ["NORMAL", "PNEUMONIA"]


def test_one_site_called_test_is_a_site(tmp_path: Path) -> None:
    for site in ("test", "north"):
        for label in ("a", "b"):
            images(tmp_path / "own" / site / label)
    with make(tmp_path, "folders", "--root", tmp_path / "own", *SMALL) as shards:
        assert shards.header.client_names == ["north", "test"]


def test_what_is_passed_over_is_counted_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "own"
    for label in ("x", "y"):
        images(root / label)
        for i in range(3):
            (root / label / f"{i}.dcm").write_bytes(b"DICM")
        (root / label / "scan.nii.gz").write_bytes(b"")
    (root / "x" / "deeper").mkdir()
    (root / "x" / ".DS_Store").write_bytes(b"")
    (root / "README").write_text("")
    images(root, 2)
    capsys.readouterr()
    with make(tmp_path, "folders", "--root", root, *SMALL, "--clients", 2):
        told, *_ = [
            line
            for line in capsys.readouterr().out.splitlines()
            if " samples, " in line and "clients" in line
        ]
    assert told.endswith(
        "; passed over: 6 .dcm, 2 .nii.gz, 2 .png outside the class folders, 1 file without suffix, "
        "1 folder inside a class"
    )


def test_a_class_of_foreign_files_and_dangling_links(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "own"
    images(root / "x")
    (root / "y").mkdir()
    for i in range(4):
        (root / "y" / f"{i}.npy").write_bytes(b"")
    assert "y: no images in this class folder; it holds 4 .npy; save them as PNG" in folders(capsys, root)
    images(root / "y")
    for i in range(2):
        (root / "y" / f"gone{i}.png").symlink_to("../../.git/annex/objects/gone.png")
    said = folders(capsys, root)
    assert "2 of 26 images cannot be read" in said
    assert "gone0.png (No such file or directory)" in said
    capsys.readouterr()
    with make(tmp_path, "folders", "--root", root, *SMALL, "--clients", 2, "--skip-broken") as shards:
        assert sum(shards.sizes) + len(shards.test_set) == 24
    assert "skipped 2 of 26 images" in capsys.readouterr().out


def test_names_that_differ_by_case_or_by_unicode_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "own"
    for site, form in (("A", "NFC"), ("B", "NFD")):
        images(root / site / unicodedata.normalize(form, "Pnéumonie"))
        images(root / site / "normal")
    with make(tmp_path, "folders", "--root", root, *SMALL) as shards:
        assert shards.header.class_names == [unicodedata.normalize("NFC", "Pnéumonie"), "normal"]
    (root / "B" / "normal").rename(root / "B" / "Normal")
    said = folders(capsys, root)
    assert "classes Normal and normal differ by upper and lower case alone" in said
    assert str(root / "B" / "Normal") in said


def test_sixteen_bit_images_that_use_twelve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = tmp_path / "own"
    for label in ("x", "y"):
        images(root / "A" / label)
        images(root / "B" / label, high=4096, dtype=np.uint16)
        images(root / "C" / label, high=2**16, dtype=np.uint16)
    said = folders(capsys, root)
    assert "site B: its 16-bit images hardly go above 40" in said
    assert "--bits 12" in said
    assert "site C: a 16-bit image has the value 6" in folders(capsys, root, "--bits", 12)
    for path in (root / "C").rglob("*.png"):
        path.unlink()
    for folder in (root / "C" / "x", root / "C" / "y", root / "C"):
        folder.rmdir()
    with make(tmp_path, "folders", "--root", root, *SMALL, "--image-size", 9, "--bits", 12) as shards:
        for client in (0, 1):  # 8-bit and 12-bit images both reach the top
            assert shards.client(client)[0].max() > 250
        assert "--bits 12" in shards.header.made_by
    assert (
        main(["folders", "--root", str(root), *map(str, SMALL), "--bits", "16", "--out", f"{root}.h5"]) == 0
    )
    capsys.readouterr()
    assert main(["inspect", f"{root}.h5"]) == 0
    assert "SUSPICIOUS: that is client 1 (B): " in capsys.readouterr().out


def test_clients_have_no_effect_where_sites_are_the_clients(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for site in ("A", "B"):
        for label in ("x", "y"):
            images(tmp_path / "own" / site / label)
    assert "2 sites are 2 clients" in folders(capsys, tmp_path / "own", "--clients", 5)


# --- groups ---------------------------------------------------------------------------------------


def patients(root: Path, count: int = 40, each: int = 5) -> None:
    """Near-copies: 5 images of each patient, whose class is random."""
    rng = np.random.default_rng(0)
    for p in range(count):
        label = "ab"[rng.integers(2)]
        base = rng.integers(40, 216, (9, 9))
        (root / label).mkdir(parents=True, exist_ok=True)
        for i in range(each):
            pixels = np.clip(base, 0, 255).astype(np.uint8)
            pixels[0, 0] = p  # to be found again
            Image.fromarray(pixels).save(root / label / f"patient{p:03}_{i}.png")


def test_no_patient_is_on_both_sides(tmp_path: Path) -> None:
    patients(tmp_path / "own")
    table = tmp_path / "patients.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient_id", "Image"])
        rows.writerows([path.name[7:10], path.name] for path in sorted((tmp_path / "own").rglob("*.png")))
    made = []
    for rule in (r"patient(\d+)", r"patient\d+", f"{table}:patient_id"):
        flags = ("--image-size", 9, "--channels", 1, "--clients", 2, "--group", rule)
        with make(tmp_path / str(len(made)), "folders", "--root", tmp_path / "own", *flags) as shards:
            train = {int(x[0, 0, 0]) for i in range(2) for x in shards.client(i)[0]}
            x_test, y_test = shards.test_set.read(0, len(shards.test_set))
            test = {int(x[0, 0, 0]) for x in x_test}
            made.append(np.bincount(y_test).tolist())
        assert not train & test
        assert len(train | test) == 40
    assert made[0] == made[1] == made[2]
    totals = [len(list((tmp_path / "own" / label).iterdir())) for label in "ab"]
    for held, total in zip(made[0], totals, strict=True):  # whole patients, so within one of them
        assert abs(held - 0.2 * total) <= 5


def test_groups_are_stratified_over_sites_and_classes_as_far_as_they_can_be() -> None:
    rng = np.random.default_rng(1)
    group_N = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    labels_G, sites_G = rng.integers(0, 3, 200), rng.integers(0, 2, 200)
    labels, sites = labels_G[group_N], sites_G[group_N]
    train, test = stratified_split(labels, 0.25, 7, sites, [str(g) for g in group_N])
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert not set(group_N[train]) & set(group_N[test])
    for site in range(2):
        for k in range(3):
            cell = (labels == k) & (sites == site)
            assert abs(cell[test].sum() - 0.25 * cell.sum()) <= 5
    again = stratified_split(labels, 0.25, 7, sites, [str(g) for g in group_N])
    assert np.array_equal(again[1], test)
    assert not np.array_equal(stratified_split(labels, 0.25, 8, sites, [str(g) for g in group_N])[1], test)


def test_a_class_of_one_group_cannot_be_split() -> None:
    with pytest.raises(UserError, match="has all its images in the test half"):
        stratified_split(np.array([0, 0, 1, 1]), 0.9, 0, None, ["p", "p", "q", "q"])


def test_group_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root, table = tmp_path / "own", tmp_path / "t.csv"
    patients(root, 6, 2)
    assert "no group for a/patient0" in folders(capsys, root, "--group", r"person(\d+)")
    assert "no regular expression" in folders(capsys, root, "--group", "(")
    assert "cannot be read as a table" in folders(capsys, root, "--group", f"{table}:who")
    table.write_text("name,who\n1,2\n")
    assert "no column names the files; call it file" in folders(capsys, root, "--group", f"{table}:who")
    table.write_text("file,who\nx.png,1\nx.png,2\n")
    assert "line 3: x.png is in two groups: 1, 2" in folders(capsys, root, "--group", f"{table}:who")
    assert "no such column; did you mean who?" in folders(capsys, root, "--group", f"{table}:whom")
    patients(tmp_path / "test", 2, 2)
    said = folders(capsys, root, "--test-root", tmp_path / "test", "--group", r"patient(\d+)")
    assert f"000 is in {root} and in {tmp_path / 'test'}" in said


def test_a_table_may_name_paths_below_the_root(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\ufefffile,who\na/1.png,p\nb/1.png,q\n")
    paths = [tmp_path / "a" / "1.png", tmp_path / "b" / "1.png"]
    assert groups_of(paths, tmp_path, f"{tmp_path / 't.csv'}:who") == ["p", "q"]


# --- what a hunt for wrong data found ---------------------------------------------------------------


@pytest.mark.parametrize(
    "halves",
    [("train_set", "test_set"), ("images_tr", "images_ts"), ("seg_train", "seg_test"), ("fold1", "fold2")],
)
def test_halves_by_other_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, halves: tuple[str, str]
) -> None:
    for half in halves:
        images(tmp_path / "own" / half / "a")
    assert f"{halves[1]}, {halves[0]} are the halves" in folders(capsys, tmp_path / "own").replace(
        f"{halves[0]}, {halves[1]}", f"{halves[1]}, {halves[0]}"
    )


def test_a_test_root_that_holds_the_training_images(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for label in ("a", "b"):
        images(tmp_path / "own" / "site" / label)
    for inside in (tmp_path / "own", tmp_path / "own" / "site", tmp_path):
        said = folders(capsys, tmp_path / "own", "--test-root", inside)
        assert "hold the same images" in said


def test_images_on_both_sides_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for label in ("a", "b"):
        images(tmp_path / "train" / label)
        images(tmp_path / "test" / label)
    copied = (tmp_path / "train" / "a" / "03.png").read_bytes()
    (tmp_path / "test" / "b" / "99.png").write_bytes(copied)
    capsys.readouterr()
    flags = ("--root", tmp_path / "train", "--test-root", tmp_path / "test", "--clients", 2)
    with make(tmp_path, "folders", *flags, *SMALL, "--image-size", 9):
        said = capsys.readouterr().out
    assert "1 of 25 test images are training images: accuracy will look too good" in said


def test_sites_that_share_no_class_are_asked_about(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """CLASS/PATIENT/images looks like SITE/CLASS/images."""
    for label in ("normal", "ill"):
        for patient in range(2):
            images(tmp_path / "own" / label / f"{label}{patient}")
    capsys.readouterr()
    with make(tmp_path, "folders", "--root", tmp_path / "own", *SMALL):
        said = capsys.readouterr().out
    assert "no class is at two sites: are these sites? Taken as sites: ill, normal" in said


def test_values_outside_of_16_bits_and_inverted_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from data_prep.sources.decode import fit

    for low, high in ((-1000, 40), (0, 2**20)):
        Image.fromarray(np.array([[low, high], [0, 0]], np.int32)).save(tmp_path / "deep.tiff")
        with pytest.raises(ValueError, match=f"values from {low} to {high}; save it as 8 or 16 bits from 0"):
            fit(tmp_path / "deep.tiff", 2, 1)
    Image.fromarray(np.full((2, 2), 4095 - 160, np.uint16)).save(tmp_path / "w.tiff", tiffinfo={262: 0})
    assert (fit(tmp_path / "w.tiff", 2, 1, 12) == 10).all()  # 160 of 4095


def test_one_overexposed_pixel_hides_no_black_site(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "own"
    for label in ("x", "y"):
        images(root / label, high=4096, dtype=np.uint16)
    pixels = np.zeros((9, 9), np.uint16)
    pixels[0, 0] = 65535
    Image.fromarray(pixels).save(root / "x" / "00.png")
    assert "--bits 12" in folders(capsys, root)


def test_pixels_of_0_and_1_are_told_when_the_file_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    halves = {f"x_{half}": rng.integers(0, 256, (40, 6, 6)).astype(np.uint8) for half in ("train", "test")}
    labels = {f"y_{half}": np.arange(40) % 2 for half in ("train", "test")}
    for half, told in (("train", "clients, the worst is client"), ("test", "that is the test set")):
        np.savez(tmp_path / f"{half}.npz", **{**halves, f"x_{half}": halves[f"x_{half}"] % 2}, **labels)
        capsys.readouterr()
        with make(tmp_path / half, "npz", "--file", tmp_path / f"{half}.npz", "--clients", 2):
            said = capsys.readouterr().out
        assert "SUSPICIOUS pixels: " in said
        assert told in said


def test_a_table_without_its_column_and_with_one_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    patients(tmp_path / "own", 6, 2)
    table = tmp_path / "t.csv"
    table.write_text("file,who,who\nx,1,2\n")
    assert "two columns have one name" in folders(capsys, tmp_path / "own", "--group", f"{table}:who")
    assert "name the column as well" in folders(capsys, tmp_path / "own", "--group", str(table))
