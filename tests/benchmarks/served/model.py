"""The model: a few layers, of which 32 inputs at a time cost little more than one."""

from __future__ import annotations

import numpy as np

#: How many requests a batch may have.
SIZE = 32
_WIDTH = 512
_WEIGHTS = np.random.default_rng(0).standard_normal((_WIDTH, _WIDTH), dtype=np.float32) / _WIDTH


def answers(numbers: list[float]) -> list[float]:
    """Return an answer to each number."""
    layer = np.repeat(np.asarray(numbers, np.float32)[:, None], _WIDTH, axis=1)
    for _ in range(4):
        layer = np.maximum(layer @ _WEIGHTS, 0)
    return [float(row[0]) for row in layer]
