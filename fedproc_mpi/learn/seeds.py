"""Random streams keyed by (seed, purpose, round, client): never by rank or by call order (law 1)."""

import hashlib

import numpy as np
import torch


def seed_for(seed: int, purpose: str, round_: int = 0, client: int = 0) -> int:
    """A 64-bit seed for one stream; NumPy's SeedSequence mixes the key.

    The purpose enters by its hash, so that a new purpose never shifts the streams of the others.
    """
    purpose_word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    words = np.random.SeedSequence([seed, purpose_word, round_, client]).generate_state(1, np.uint64)
    return int(words[0])


def torch_generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> torch.Generator:
    """A CPU generator for the stream: drawn on the host, so that a GPU draws the same numbers."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, round_, client))


def numpy_generator(seed: int, purpose: str, round_: int = 0, client: int = 0) -> np.random.Generator:
    """A NumPy generator (PCG64) for the stream."""
    return np.random.Generator(np.random.PCG64(seed_for(seed, purpose, round_, client)))
