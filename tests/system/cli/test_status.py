"""`coatcheck serve` says where it is, and `status` and `logs` say so later."""

import asyncio
import json
import signal
from pathlib import Path

from tests.cli.transcript import coatcheck
from tests.system.cli.conftest import Served, until


async def test_a_daemon_says_where_it_is_and_what_it_cannot_use(daemon: Served, output_dir: Path) -> None:
    """At its start in its log, and whenever it is asked: the same places, stores and policies."""
    log = output_dir / "daemon.log"
    until(lambda: "credential github-git cannot be used" in log.read_text())
    said = await daemon.coatcheck("status")
    assert said.code == 0, said
    rows = dict(line.split("  ", 1) for line in said.out.splitlines())
    rows = {name.strip(): value.strip() for name, value in rows.items()}
    assert rows["state directory"] == daemon.settings["COATCHECK_STATE_DIR"]
    assert rows["control socket"] == daemon.settings["COATCHECK_CONTROL_SOCKET"]
    assert rows["policies"] == daemon.settings["COATCHECK_POLICY"]
    assert rows["policy default"].startswith("sha256 ") and rows["store vault"] == "answers"
    assert rows["daemon"].startswith(f"pid {daemon.process.pid}, ") and rows["daemon"].endswith("ready")
    told = log.read_text()
    for name in ("state directory", "control socket", "policies", "policy default"):
        assert f"coatcheck.daemon: {name}: {rows[name]}" in told
    assert "coatcheck.daemon: secret store vault: answers" in told
    assert "credential openai cannot" not in told
    shown = json.loads((await daemon.coatcheck("status", "--json")).out)
    assert shown["stores"] == [{"name": "vault", "trouble": None, "hint": None}] and shown["ready"]


async def test_the_log_can_be_read_while_it_runs_and_after_it_ended(daemon: Served, output_dir: Path) -> None:
    """A daemon that died of something said of what."""
    state = daemon.settings["COATCHECK_STATE_DIR"]
    running = await daemon.coatcheck("logs", "--state-dir", state, "-n", "0")
    assert running.code == 0 and f"state directory: {state}\n" in running.out
    assert (Path(state) / "daemon.log").stat().st_mode & 0o777 == 0o600
    daemon.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(daemon.process.wait, 20)
    ended = await daemon.coatcheck("logs", "--state-dir", state, "-n", "1")
    assert ended.out.count("\n") == 1 and "stopped" in ended.out
    said = await daemon.coatcheck("status")
    assert said.code == 3 and "coatcheck serve" in said.error


def test_without_a_log_it_is_said_where_it_would_be(tmp_path: Path) -> None:
    """And what writes it."""
    said = coatcheck("logs", "--state-dir", tmp_path / "s", cwd=tmp_path)
    assert said.code == 3 and f"there is no log at {tmp_path}/s/daemon.log" in said.error
