"""How the CPU time of what touches bytes from a sandbox grows with their number."""

import time
from collections.abc import Callable


def growth(run: Callable[[int], None], size: int) -> float:
    """By how much `run(16 * size)` costs more than `run(size)`, each the best of five. Linear is about 16."""
    return _best(run, 16 * size) / _best(run, size)


def _best(run: Callable[[int], None], size: int) -> float:
    return min(_cpu(run, size) for _ in range(5))


def _cpu(run: Callable[[int], None], size: int) -> float:
    start = time.process_time()
    run(size)
    return time.process_time() - start
