"""`coatcheck page` prints a link that works, and says what to do where there is no page."""

import asyncio
import json
from pathlib import Path

from tests.cli.transcript import coatcheck
from tests.daemon import TestDaemon
from tests.system.control.conftest import Control, control, ground, short_dir
from tests.system.control.page.conftest import headers
from tests.system.planes.conftest import daemon

__all__ = ["control", "daemon", "ground", "short_dir"]


async def test_it_prints_a_link_that_logs_in(control: Control, tmp_path: Path) -> None:
    """One line, so that a terminal makes it clickable; what it is goes to stderr."""
    socket = ("--socket", str(control.socket))
    done = await asyncio.to_thread(coatcheck, "page", *socket, cwd=tmp_path)
    assert done.code == 0 and done.out.count("\n") == 1 and "logs you in once, within 120 s" in done.err
    code = done.out.strip().partition("#login=")[2]
    answer = await control.ask("POST", "/page/login", body={"code": code}, headers=headers(control))
    assert answer.status == 200
    done = await asyncio.to_thread(coatcheck, "page", "--json", *socket, cwd=tmp_path)
    assert json.loads(done.out)["page"] == f"{control.url}/page/"


async def test_without_a_port_it_says_how_to_have_one(daemon: TestDaemon, tmp_path: Path) -> None:
    """The default serves no page."""
    done = await asyncio.to_thread(coatcheck, "page", "--socket", str(daemon.settings.control), cwd=tmp_path)
    assert done.code == 3 and "COATCHECK_CONTROL_PORT" in done.err
