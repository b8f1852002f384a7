"""A sign of life for whatever takes longer than two seconds, on a terminal only."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AFTER_SECONDS = 2.0
"""What is done before that needs no announcement."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show `what …` with the seconds that it takes, on standard error, until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    shower = threading.Thread(target=_show, args=(what, done), daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()


def _show(what: str, done: threading.Event) -> None:
    if done.wait(AFTER_SECONDS):
        return
    from rich.console import Console  # 0.1 s that quick commands need not spend

    with Console(stderr=True).status(f"{what} …"):
        done.wait()
