"""Counter-based sampling noise: a uniform number is a pure function of who asks for it.

Nothing is drawn from a shared generator, so a sample does not depend on who else is in the batch, nor on a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np


def uniforms(key: tuple[str | int, ...], n: int) -> np.ndarray:
    """``n`` uniform numbers in [0, 1), float64, for tokens 0..n-1 of the turn that ``key`` names."""
    return generator(key).random(n)


def generator(key: tuple[str | int, ...]) -> np.random.Generator:
    """A generator whose stream depends on ``key`` alone (Philox, keyed by the key's BLAKE2b digest)."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
