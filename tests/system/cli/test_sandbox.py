"""`coatcheck sandbox …` as a person uses it: streams, signals, terminals, exit codes, nothing left of it."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from coatcheck.images.cache import find
from coatcheck.images.problem import ImageError
from coatcheck.settings.daemon import Settings
from tests.cli.transcript import COATCHECK, Said, coatcheck, environment
from tests.sandboxes import SECONDS, Place, place, sandbox_in, until
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap"), pytest.mark.asyncio(loop_scope="module")]

NEW = ("sandbox", "run", "--backend", "namespace", "--tenant", "acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(where: Place) -> AsyncIterator[Sandbox]:
    async with sandbox_in(where) as made:
        yield made


@pytest.fixture
def asked(where: Place, tmp_path: Path) -> Callable[..., "asyncio.Future[Said]"]:
    """The command, while this loop's daemon serves it."""

    def ask(*arguments: str | Path, **options: str) -> "asyncio.Future[Said]":
        stdin = options.pop("stdin", "")
        env = {"COATCHECK_CONTROL_SOCKET": str(where.socket)} | options
        work = asyncio.to_thread(coatcheck, *arguments, cwd=tmp_path, env=env, stdin=stdin)
        return asyncio.ensure_future(work)

    return ask


type Ask = Callable[..., "asyncio.Future[Said]"]


async def test_a_command_in_a_new_sandbox_is_like_one_here(where: Place, asked: Ask) -> None:
    """Streams and exit code are its own; which isolation it had is said in one line; it ends with it."""
    script = 'cat; echo "$GIVEN"; echo no >&2; env | grep -c OF_MINE; exit 5'
    options = ("--env", "GIVEN=this", "--env", "PASSED_ON", "--memory", "100")
    said = await asked(*NEW, *options, "--", "sh", "-c", script, stdin="in\n", OF_MINE="1", PASSED_ON="2")
    assert (said.code, said.out) == (5, "in\nthis\n0\n")
    assert said.err == "isolation: namespace: as asked for, the host's kernel is shared\nno\n"
    last = where.control().sandboxes()
    assert {each["state"] for each in last if each["memory_mib"] == 100} == {"ended"}


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
