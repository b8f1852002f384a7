"""The terms of the compatibility mode, one by one."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import addons
from mitmproxy.options import Options
from mitmproxy.tools.dump import DumpMaster

from coatcheck.planes.stock.options import TERMS, Term, command_line, notice, unmet

SCRIPT = Path("/opt/stock.py")
BAD: dict[str, Any] = {
    "connection_strategy": "eager",
    "flow_detail": 2,
    "termlog_verbosity": "debug",
    "mode": ["regular", "transparent"],
}


async def safe_options() -> dict[str, Any]:
    """mitmdump's own, set as `command_line` says."""
    if not hasattr(addons, "default_addons"):
        importlib.reload(addons)  # some other test's daemon has left them out (coatcheck.planes.mitm.master)
    options = Options()
    master = DumpMaster(options)
    # This master never runs, and must not listen to other tests.
    master._legacy_log_events.uninstall()  # noqa: SLF001 - mitmproxy has no other way
    assert master._termlog_addon is not None  # noqa: SLF001 - the same
    master._termlog_addon.uninstall()  # noqa: SLF001
    master.addons.get("errorcheck").finish()
    for word in command_line(SCRIPT).split("--set ")[1:]:
        if not word.startswith("coatcheck"):
            options.set(word.strip())
    return {name: getattr(options, name) for name in options.keys()}  # noqa: SIM118 - no mapping


async def test_the_command_line_meets_all_terms() -> None:
    """What the hint says to paste is enough, and every option in the terms is one that mitmdump has."""
    assert unmet(await safe_options(), [str(SCRIPT)], SCRIPT) == []


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.option)
async def test_each_term_alone_is_enough_to_refuse(term: Term) -> None:
    """One unsafe option, or one that this mitmproxy does not know, is named with its reason."""
    options = await safe_options()
    good = options[term.option]
    bad = BAD.get(term.option, (not good) if isinstance(good, bool) else "something")
    for found in (options | {term.option: bad}, {k: v for k, v in options.items() if k != term.option}):
        refused = unmet(found, [str(SCRIPT)], SCRIPT)
        assert len(refused) == 1
        assert term.option in refused[0]
        assert term.why in refused[0]


@pytest.mark.parametrize("scripts", [[], ["/opt/other.py"], ["/opt/other.py", "/opt/stock.py"]])
async def test_no_other_script_is_beside_ours(scripts: list[str]) -> None:
    """It would run in the same process, before or after us."""
    assert "no other script" in unmet(await safe_options(), scripts, SCRIPT)[0]


def test_the_notice_says_whether_secrets_are_used() -> None:
    """And always what is not held."""
    assert "nothing is injected" in notice(injects=False)
    assert "are injected" in notice(injects=True)
    assert notice(injects=True).count("\nI") == 6
