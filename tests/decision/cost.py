"""How the CPU time of what touches bytes from a sandbox grows with their number."""

import time
from collections.abc import Callable

LINEAR = 24.0
"""Sixteen times the bytes cost about 16 times as much; more than this is not linear (quadratic is 256)."""

_ROUNDS = 5
_MOST_ROUNDS = 40


def growth(run: Callable[[int], None], size: int) -> float:
    """By how much `run(16 * size)` costs more than `run(size)`, each the best of five rounds.

    A neighbour that shares the processor's caches makes the larger run dearer than the smaller one. So a
    figure above `LINEAR` is measured again, up to forty rounds: more rounds bring a linear cost down, and
    never a quadratic one.
    """
    small = large = float("inf")
    for done in range(1, _MOST_ROUNDS + 1):
        small, large = min(small, _cpu(run, size)), min(large, _cpu(run, 16 * size))
        if done >= _ROUNDS and large <= LINEAR * small:
            break
    return large / small


def _cpu(run: Callable[[int], None], size: int) -> float:
    start = time.thread_time()
    run(size)
    return time.thread_time() - start
