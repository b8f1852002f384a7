"""What every test may use; the plugins say what for."""

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.fuzz.budget import HARD

pytest_plugins = [
    "pytester",
    "tests.debian",
    "tests.long_files",
    "tests.secret_grep",
    "tests.shared_rewriting",
    "tests.upstreams",
]

settings.register_profile(
    "suite",
    derandomize=True,  # a search has its place, `make hard`: what passed passes again
    database=None,
    deadline=None,  # a slow machine is no finding
    suppress_health_check=[HealthCheck.too_slow],
)
if settings.get_current_profile_name() != HARD:
    settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Inherited from a shell that started this behind `&`. Programs that tests start would inherit it, too,
    # and Python then has no KeyboardInterrupt: those that test Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are made and all are kept: nothing is worth collecting, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
