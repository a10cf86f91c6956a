"""The embedded set: UCI/scikit-learn digits, 1,797 real 8×8 images of 10 classes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.heldout import stratified_split
from data_prep.sources.base import Source, in_memory
from data_prep.sources.sharding import Sharding


@dataclass(frozen=True, kw_only=True)
class Digits(Sharding):
    """The embedded 8×8 digits."""

    def load(self) -> Source:
        """A fifth is held out for the test. Pixels 0…16 are scaled to 0…255."""
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
            raw, labels = file["images"], file["labels"].astype(np.int64)
        x_NHWC = np.rint(raw * (255 / 16)).astype(np.uint8)[..., None]
        train, test = (in_memory(x_NHWC[i], labels[i]) for i in stratified_split(labels, 0.2, self.seed))
        return Source("digits", [str(k) for k in range(10)], (8, 8, 1), train, test)
