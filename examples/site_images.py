"""Make a small folder of images to try things with: python examples/site_images.py FOLDER

FOLDER/North|South|East/healthy|ill/000.png …: 220 grey pictures of noise, 48 × 48 pixels. The ill ones have a
bright square somewhere. The sites differ in how many of their pictures are ill, so the clients are non-IID.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SITES = {"North": (60, 20), "South": (20, 60), "East": (50, 10)}  # pictures that are healthy, ill


def main(root: Path) -> None:
    """Write the pictures; the same ones each time."""
    random = np.random.default_rng(0)
    for site, counts in SITES.items():
        for label, count in zip(("healthy", "ill"), counts, strict=True):
            folder = root / site / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 120, (48, 48), np.uint8)
                if label == "ill":
                    row, column = random.integers(4, 32, 2)
                    pixels[row : row + 12, column : column + 12] += 120
                Image.fromarray(pixels).save(folder / f"{i:03}.png")


if __name__ == "__main__":
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: python examples/site_images.py FOLDER, a folder that does not exist yet")
    main(Path(sys.argv[1]))
