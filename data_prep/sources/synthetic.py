"""Images made from the seed, for scalability studies: any number of clients, classes, sizes.

A class is a smooth random pattern, a sample is that pattern plus noise: learnable, and a sample's pixels
depend on (seed, index) alone, so that no order of reading changes them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from data_prep.partitions import Indices, generator
from data_prep.sources.base import Source, Split
from data_prep.sources.sharding import Sharding
from fedproc_mpi.flags import setting

NOISE = 96  # grey levels, ±


@dataclass(frozen=True, kw_only=True)
class Synthetic(Sharding):
    """Generated images, for scalability studies (by default `samples` a client)."""

    made_for_clients: ClassVar[bool] = True

    classes: int = setting(10, "classes K", low=2, high=65535)
    image_size: int = setting(32, "height and width", low=1)
    channels: Literal[1, 3] = setting(3, "colour or grey")
    samples: int = setting(100, "training samples of a client (other partitions: on average)", low=1)
    test_samples: int = setting(1000, "samples of the test set", low=1)

    def load(self) -> Source:
        """Balanced classes; the natural partition gives each client exactly `samples`."""
        clients, seed, shape = self.clients, self.seed, (self.image_size, self.image_size, self.channels)
        coarse = generator(seed, "synthetic patterns").integers(64, 192, (self.classes, 4, 4, self.channels))
        stretch = np.arange(self.image_size) * 4 // self.image_size
        patterns_KHWC = coarse[:, stretch][:, :, stretch].astype(np.int16)

        def half(labels: npt.NDArray[np.int64], key: int, sites: Indices | None = None) -> Split:
            def pixels(rows: Indices) -> npt.NDArray[np.uint8]:
                places = np.arange(np.prod(shape), dtype=np.uint64)
                counters = rows.astype(np.uint64)[:, None] * np.uint64(len(places)) + places
                words = _mix(counters + np.uint64(generator(seed, "synthetic noise", key).integers(2**62)))
                noise = (words % np.uint64(2 * NOISE + 1)).astype(np.int16) - NOISE
                x_NHWC = patterns_KHWC[labels[rows]] + noise.reshape(-1, *shape)
                return x_NHWC.clip(0, 255).astype(np.uint8)

            return Split(labels, pixels, sites)

        rows = np.arange(clients * self.samples)
        y_train = generator(seed, "synthetic labels").permutation(rows % self.classes)
        train = half(y_train, 0, sites=rows // self.samples)
        test = half(np.arange(self.test_samples) % self.classes, 1)
        return Source("synthetic", [str(k) for k in range(self.classes)], shape, train, test, [""] * clients)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): counters → random words; wraps modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
