"""`coatcheck sandbox run`: exit codes, signals and interruptions."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from coatcheck.client.sandbox import Sandbox
from tests.cli.transcript import COATCHECK, environment
from tests.sandboxes import SECONDS, Place, until
from tests.system.cli.sandbox_commands import NEW, Ask, asked, sandbox, where

__all__ = ["asked", "sandbox", "where"]

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


async def test_exit_codes_say_who_failed(sandbox: Sandbox, asked: Ask) -> None:
    """127, 126: the command could not be found or started; 125: it is us; 128+n: a signal."""
    execute = ("sandbox", "exec", sandbox.id, "--")
    for command, code in (
        (("no-such-program",), 127),
        (("/etc/passwd",), 126),
        (("sh", "-c", "kill -KILL $$"), 137),
    ):
        assert (await asked(*execute, *command)).code == code
    none = await asked("sandbox", "exec", "sbx_0000000000000000", "--", "true")
    assert none.code == 125 and "there is no sandbox" in none.err
    late = await asked("sandbox", "exec", "--timeout", "0.3", sandbox.id, "--", "sleep", "60")
    assert late.code == 137 and "limit: " in late.err and "hint: " in late.err
    wrong = await asked(*NEW, "--backend", "docker", "--", "true")
    assert wrong.code == 2 and "microvm or namespace" in wrong.err


def started(where: Place, tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [COATCHECK, *arguments],
        cwd=tmp_path,
        env=environment(COATCHECK_CONTROL_SOCKET=str(where.socket)),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def live(where: Place) -> set[str]:
    return {each["id"] for each in where.control().sandboxes() if each["state"] != "ended"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 7)])
async def test_signals_are_the_command_s(where: Place, tmp_path: Path, number: int, code: int) -> None:
    """It may end as it likes; then its sandbox is gone, too."""
    script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"

    def work() -> None:
        before = live(where)
        process = started(where, tmp_path, *NEW, "--", "sh", "-c", script)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        process.communicate(timeout=SECONDS)
        assert process.returncode == code
        assert live(where) == before

    await asyncio.to_thread(work)


async def test_an_interruption_before_there_is_a_command_leaves_nothing(where: Place, tmp_path: Path) -> None:
    """Ctrl-C while it starts."""

    def work() -> None:
        before = live(where)
        process = started(where, tmp_path, *NEW, "--", "sleep", "100")
        until(lambda: live(where) - before)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        until(lambda: live(where) == before)

    await asyncio.to_thread(work)
