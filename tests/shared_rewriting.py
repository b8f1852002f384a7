"""A pytest plugin: what the workers of a run must each have, one of them makes and the others find.

Pytest rewrites every test file's assertions once and keeps the result in `__pycache__`. Workers that begin
together with the first file each do all of it, side by side. Here each begins at another place of the list.
"""

import importlib
from contextlib import suppress

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports the test files, from this worker's own on, before they are collected in the common order."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    without = [config.rootpath / place for place in config.getoption("ignore") or ()]
    files = sorted(
        file
        for place in config.args
        for file in (config.rootpath / place).rglob("test_*.py")
        if not any(file.is_relative_to(place) for place in without)
    )
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it says what is wrong with it
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
