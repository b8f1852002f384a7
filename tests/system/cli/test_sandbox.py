"""`coatcheck sandbox …` as a person uses it: streams, signals, terminals, exit codes, nothing left of it."""

import asyncio
import json
import os
import pty
import subprocess
import termios
import time
from pathlib import Path

import pytest

from coatcheck.client.sandbox import Sandbox
from coatcheck.images.cache import find
from coatcheck.images.problem import ImageError
from coatcheck.settings.daemon import Settings
from tests.cli.transcript import COATCHECK, Said, coatcheck, environment
from tests.sandboxes import SECONDS, Place
from tests.system.cli.sandbox_commands import NEW, Ask, asked, sandbox, where

__all__ = ["asked", "sandbox", "where"]

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]


async def test_a_command_in_a_new_sandbox_is_like_one_here(where: Place, asked: Ask) -> None:
    """Streams and exit code are its own; which isolation it had is said in one line; it ends with it."""
    script = 'cat; echo "$GIVEN"; echo no >&2; env | grep -c OF_MINE; exit 5'
    options = ("--env", "GIVEN=this", "--env", "PASSED_ON", "--memory", "100")
    said = await asked(*NEW, *options, "--", "sh", "-c", script, stdin="in\n", OF_MINE="1", PASSED_ON="2")
    assert (said.code, said.out) == (5, "in\nthis\n0\n")
    assert said.err == "isolation: namespace: as asked for, the host's kernel is shared\nno\n"
    last = where.control().sandboxes()
    assert {each["state"] for each in last if each["memory_mib"] == 100} == {"ended"}


async def test_a_terminal_goes_through(where: Place, sandbox: Sandbox, tmp_path: Path) -> None:
    """The command has one, keys reach it one by one, and ours is as it was afterwards."""

    def work() -> str:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (31, 71))
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [
                COATCHECK,
                "sandbox",
                "exec",
                sandbox.id,
                "--",
                "sh",
                "-c",
                "stty size; read x; echo got $x; exit 6",
            ],
            cwd=tmp_path,
            env=environment(COATCHECK_CONTROL_SOCKET=str(where.socket)),
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        said = b""
        while b"31 71" not in said:
            said += os.read(ours, 1000)
        os.write(ours, b"keys\n")
        while b"got keys" not in said:
            said += os.read(ours, 1000)
        assert process.wait(SECONDS) == 6
        assert termios.tcgetattr(theirs) == before
        os.close(ours)
        os.close(theirs)
        return said.decode()

    assert "31 71" in await asyncio.to_thread(work)


async def test_a_sandbox_is_shown_used_and_removed(where: Place, asked: Ask, tmp_path: Path) -> None:
    """--keep, list, show, cp, pause, resume, rm."""
    kept = await asked(*NEW, "--keep", "--", "true")
    name = next(word for word in kept.err.split() if word.startswith("sbx_"))
    listed = json.loads((await asked("sandbox", "list", "--json")).out)
    assert name in {each["id"] for each in listed}
    shown = (await asked("sandbox", "show", name)).out
    assert "isolation  namespace" in shown and "session    agent ses_" in shown
    (tmp_path / "report.txt").write_text("a report")
    assert (await asked("sandbox", "cp", "report.txt", f"{name}:/home/agent/")).code == 0
    (tmp_path / "back").mkdir()
    assert (await asked("sandbox", "cp", f"{name}:/home/agent/report.txt", "back")).code == 0
    assert (tmp_path / "back/report.txt").read_text() == "a report"
    missing = await asked("sandbox", "cp", f"{name}:/home/agent/none", "back")
    assert missing.code == 3 and "no such file" in missing.err
    assert (await asked("sandbox", "pause", name)).out == f"{name}: paused\n"
    assert (await asked("sandbox", "resume", name)).out == f"{name}: running\n"
    assert (await asked("sandbox", "rm", name)).out == f"{name}: ended (killed)\n"
    gone = await asked("sandbox", "exec", name, "--", "true")
    assert gone.code == 125 and "ended (killed)" in gone.err


async def test_without_a_daemon_it_brings_its_own(tmp_path: Path) -> None:
    """For as long as the command runs; nothing of it is left."""
    script = 'test -n "$OPENAI_API_KEY" && echo "$HOME"'

    def work() -> Said:
        state = tmp_path / "d"
        said = coatcheck(*NEW, "--state-dir", state, "--", "sh", "-c", script, cwd=tmp_path, timeout=90)
        assert [*(state / "run/sandboxes").iterdir()] == [*(state / "run/sessions").iterdir()] == []
        return said

    said = await asyncio.to_thread(work)
    assert (said.code, said.out) == (0, "/home/agent\n"), said.err


@pytest.mark.needs_debian("qemu-system-x86_64", "mke2fs")
async def test_a_microvm_is_had_with_the_same_command(where: Place, tmp_path: Path) -> None:
    """Another kernel, one way out, and its isolation is what was measured; then nothing is left."""
    try:
        find(Settings().cache)
    except ImageError as missing:
        pytest.fail(f"{missing}: {missing.hint}") if os.environ.get("CI") == "true" else pytest.skip(
            str(missing)
        )
    script = 'uname -n; curl -s -o /dev/null -w "%{http_code}" https://api.openai.com/v1/models'
    key = ' -H "Authorization: Bearer $OPENAI_API_KEY"'

    def work() -> Said:
        env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)}
        command = ("sandbox", "run", "--backend", "microvm", "--tenant", "acme", "--memory", "256", "--")
        return coatcheck(*command, "sh", "-c", script + key, cwd=tmp_path, env=env, timeout=120)

    begun = time.time()
    said = await asyncio.to_thread(work)
    assert said.code == 0 and said.out.endswith("\n200") and said.out.startswith("sbx-"), said
    assert said.err.startswith(("isolation: emulated: TCG", "isolation: hardware: KVM"))
    (mine,) = [
        each
        for each in where.control().sandboxes()
        if each["backend"] == "microvm" and each["created_at"] > begun
    ]
    assert (mine["state"], mine["ending"]) == ("ended", "killed")
    assert not where.directory(mine["id"]).exists()
