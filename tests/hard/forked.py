"""A program: runs mutants, each in a fork of one pytest session that has collected the tests.

mutmut starts pytest anew for each, which takes longer than the tests that kill it. This reads and writes
mutmut's own results (`MODULE.py.meta`, its exit codes), in a `mutants/` tree that is the current directory:

    python forked.py SECONDS MODULE.MUTANT…
"""

import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings

KILLED, ALIVE, UNTESTED = 1, 0, 33
PATIENCE = 4.0
"""Seconds of a processor for a test, beside five times what it takes: an endless loop is a mutant found."""
MEMORY = 3 << 29
"""Bytes for a mutant: one that never stops to collect is found before the machine is full."""
PACKAGE = "coatcheck.decision"


class Forked:
    """A plugin that runs mutants where pytest would run its tests."""

    def __init__(self, names: Sequence[str], seconds: float) -> None:
        stats = json.loads(Path("mutmut-stats.json").read_text())
        self._covering: dict[str, list[str]] = stats["tests_by_mangled_function_name"]
        self._durations: dict[str, float] = stats["duration_by_test"]
        self._names = names
        self._until = time.monotonic() + seconds
        self._kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Function -> how many of its mutants each test has killed: those are asked first."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for name in self._names:
            if time.monotonic() > self._until:
                break
            _note(name, self._judge(f"{PACKAGE}.{name}", items))
        return True

    def _judge(self, name: str, items: dict[str, pytest.Item]) -> int:
        function = name.rpartition("__mutmut_")[0]
        kills = self._kills[function]
        tests = [test for test in self._covering.get(function, ()) if test in items]
        tests.sort(key=lambda test: (-kills[test], self._durations.get(test, 0.0)))
        if not tests:
            return UNTESTED
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._live(name, [items[test] for test in tests], writing)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            killer = pipe.read()
        if killer:
            kills[killer.decode()] += 1
        return os.waitstatus_to_exitcode(status)

    def _live(self, name: str, items: list[pytest.Item], killer: int) -> None:
        """As the mutant, in the fork: never returns."""
        code = ALIVE
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            os.environ["MUTANT_UNDER_TEST"] = name
            for item, following in zip(items, [*items[1:], None], strict=True):
                seconds = time.process_time() + PATIENCE + 5 * self._durations.get(item.nodeid, 0.0)
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), resource.RLIM_INFINITY))
                if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                    os.write(killer, item.nodeid.encode())
                    code = KILLED
                    break
        except BaseException:
            code = KILLED
        finally:
            os._exit(code)


def _note(name: str, code: int) -> None:
    path = Path(f"coatcheck/decision/{name.partition('.')[0]}.py.meta")
    kept = json.loads(path.read_text())
    kept["exit_code_by_key"][f"{PACKAGE}.{name}"] = code
    path.write_text(json.dumps(kept, indent=4))


if __name__ == "__main__":
    # An example is as good as its smallest; a busy machine is no reason to call a mutant dead.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutants", phases=phases, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutants")
    plugin = Forked(sys.argv[2:], float(sys.argv[1]))
    sys.exit(pytest.main(["-q", "tests/decision"], plugins=[plugin]))
