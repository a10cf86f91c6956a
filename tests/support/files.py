"""Shards to train on, and damage to what torch.save wrote."""

import zipfile
from pathlib import Path

from data_prep.__main__ import main as data_prep


def make_shards(folder: Path, clients: int = 5, seed: int = 0) -> Path:
    """Digits for a few clients."""
    path = folder / f"digits_m{clients}.h5"
    arguments = ["digits", "--clients", str(clients), "--seed", str(seed), "--out", str(path)]
    assert data_prep(arguments) == 0
    return path


def with_one_bit_changed(path: Path) -> bytes:
    """What torch.save wrote, with one bit of its largest tensor changed."""
    with zipfile.ZipFile(path) as archive:
        tensors = [info for info in archive.infolist() if "/data/" in info.filename]
        largest = max(tensors, key=lambda info: info.file_size)
        values = archive.read(largest)
    content = bytearray(path.read_bytes())
    content[content.index(values) + len(values) // 2] ^= 1
    return bytes(content)
