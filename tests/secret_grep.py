"""A pytest plugin: no secret and no handle in anything that the suite's programs wrote.

Tests let their daemons write logs, audit logs, metrics dumps and state below the fixture `output_dir`.
At the end of the run every file there, and all captured output, is searched for every known secret
and for anything that looks like a signed handle. A hit fails the run and names the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.known_secrets import found_in, known_secret, needles

HANDLE = re.compile(rb"cch_ey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
_CHUNK = 8 << 20
_OVERLAP = 4096  # longer than any needle, so that none hides where two chunks meet

_leaks: pytest.StashKey[list[str]] = pytest.StashKey()
_root: pytest.StashKey[Path] = pytest.StashKey()


def leaks_in(data: bytes, wanted: dict[bytes, str]) -> set[str]:
    """The names of the secrets in `data`, and "a handle" where one stands there."""
    found = found_in(data, wanted)
    return found | {"a handle"} if HANDLE.search(data) else found


def leaks_below(root: Path, wanted: dict[bytes, str]) -> Iterator[str]:
    """`file: name` for every leak in the regular files below `root`, their names included."""
    for path in sorted(root.rglob("*")):
        found = leaks_in(str(path.relative_to(root)).encode(), wanted)
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                tail = b""
                while chunk := file.read(_CHUNK):
                    found |= leaks_in(tail + chunk, wanted)
                    tail = chunk[-_OVERLAP:]
        yield from (f"{path}: {name}" for name in sorted(found))


@pytest.fixture(scope="session")
def secret() -> object:
    """`secret("openai")`: this run's random secret of that name, looked for in all output."""
    return known_secret


@pytest.fixture(scope="session")
def all_output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that is searched when the run ends."""
    root = tmp_path_factory.mktemp("output", numbered=False)
    request.config.stash[_root] = root
    return root


@pytest.fixture
def output_dir(request: pytest.FixtureRequest, all_output: Path) -> Path:
    """This test's own part of it: what its daemons write goes here; its secrets' files do not."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.nodeid.removeprefix("tests/"))[-120:].strip("-")
    path = all_output / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_leaks] = []


class Grep:
    """Registered with the run's own config, which `pytest_runtest_logreport` is not given."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for section, text in report.sections:
            found = leaks_in(text.encode(errors="surrogateescape"), needles())
            # Each phase repeats the sections of those before it.
            lines = [f"{report.nodeid}, {section.lower()}: {name}" for name in sorted(found)]
            known = self._config.stash[_leaks]
            known.extend(line for line in lines if line not in known)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(Grep(session.config), "secret-grep")
    session.config.pluginmanager.register(FromWorkers(session.config), "secret-grep-workers")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    leaks = session.config.stash[_leaks]
    if root := session.config.stash.get(_root, None):
        leaks.extend(leaks_below(root, needles()))
    if isinstance(output := getattr(session.config, "workeroutput", None), dict):
        output["leaks"] = leaks  # with -n, only a worker knows its secrets, and only the run can fail
    if leaks:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class FromWorkers:
    """Registered where pytest-xdist runs the tests in workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker that died has searched nothing: its tests are reported as crashed.
        self._config.stash[_leaks].extend(getattr(node, "workeroutput", {}).get("leaks", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if leaks := config.stash[_leaks]:
        terminalreporter.section("secrets in the suite's output", red=True)
        for line in leaks:
            terminalreporter.line(line, red=True)
        terminalreporter.line(
            f"error: {len(leaks)} leaks. What a daemon writes holds no secret and no handle."
        )
