"""Images made from the seed, for scalability studies: any number of clients, classes, sizes.

A class is a smooth random pattern, a sample is that pattern plus noise: learnable, and a sample's pixels
depend on (seed, index) alone, so that no order of reading changes them.
"""

import numpy as np
import numpy.typing as npt

from data_prep.partition import Indices, generator
from data_prep.sources import Source, Split
from fedproc_mpi.errors import UserError

NOISE = 96  # grey levels, ±


def synthetic(
    clients: int, classes: int, size: int, channels: int, samples: int, test_samples: int, seed: int
) -> Source:
    """samples: for each client, of balanced classes; natural partition: exactly `samples` a client."""
    for name, value in {
        "classes": classes,
        "image-size": size,
        "samples": samples,
        "test": test_samples,
    }.items():
        if value < 1:
            raise UserError(f"--{name} must be at least 1, not {value}")
    if not 2 <= classes <= 65535 or channels not in (1, 3):
        raise UserError(f"--classes must be in 2…65535 and --channels 1 or 3, not {classes} and {channels}")
    coarse = generator(seed, "synthetic patterns").integers(64, 192, (classes, 4, 4, channels))
    stretch = np.arange(size) * 4 // size
    patterns_KHWC = coarse[:, stretch][:, :, stretch].astype(np.int16)
    shape = (size, size, channels)

    def images(labels: npt.NDArray[np.int64], key: int) -> "Split":
        def pixels(rows: Indices) -> npt.NDArray[np.uint8]:
            places = np.arange(np.prod(shape), dtype=np.uint64)
            counters = rows.astype(np.uint64)[:, None] * np.uint64(len(places)) + places
            words = _mix(counters + np.uint64(generator(seed, "synthetic noise", key).integers(2**62)))
            noise = (words % np.uint64(2 * NOISE + 1)).astype(np.int16) - NOISE
            x_NHWC = patterns_KHWC[labels[rows]] + noise.reshape(-1, *shape)
            return x_NHWC.clip(0, 255).astype(np.uint8)

        return Split(labels, pixels)

    y_train = generator(seed, "synthetic labels").permutation(np.arange(clients * samples) % classes)
    train, test = images(y_train, 0), images(np.arange(test_samples) % classes, 1)
    train = Split(train.labels, train.images, np.arange(clients * samples) // samples)
    names = [""] * clients
    return Source("synthetic", [str(k) for k in range(classes)], shape, train, test, names)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): counters → random words; wraps modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
