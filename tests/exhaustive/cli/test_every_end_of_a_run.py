"""`coatcheck run`: every way in which it or its command ends, and every way to give it secrets."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.cli.transcript import COATCHECK, coatcheck, environment
from tests.system.cli.agent import AGENT, ENVIRON, refused
from tests.system.cli.conftest import Served, end


async def test_only_the_credentials_that_were_asked_for(daemon: Served) -> None:
    """`--credential` is a list of what the command may use."""
    said = await daemon.coatcheck("run", "--credential", "anthropic", "--", *ENVIRON)
    assert "ANTHROPIC_API_KEY=sk-ant-cch_" in said.out and "OPENAI_API_KEY" not in said.out
    said = await daemon.coatcheck("run", "--credential", "nosuch", "--", "true")
    assert said.code == 125 and "nosuch" in said.error


async def test_standard_input_and_output_are_the_commands_own(daemon: Served) -> None:
    """`coatcheck run` stands in pipes without being noticed."""
    said = await daemon.coatcheck("run", "--", "tr", "a-z", "A-Z", stdin="through\n")
    assert (said.code, said.out) == (0, "THROUGH\n")


async def test_options_after_the_command_are_the_commands(daemon: Served) -> None:
    """Also without the two dashes."""
    said = await daemon.coatcheck("run", "echo", "--policy", "x", "-h")
    assert (said.code, said.out) == (0, "--policy x -h\n")


async def test_a_command_outlives_many_leases_and_its_handle_with_it(
    daemon: Served, origin_server: TlsServer, short_dir: Path
) -> None:
    """With a lease of one second it works for more than three, with the string that it started with;
    a copy of that string is dead when the command has ended."""
    said = await daemon.coatcheck("run", "--lease", "1", "--", *AGENT, "for", "4")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert len(told["statuses"]) >= 4 and set(told["statuses"]) == {200}
    trust = short_dir / "run/trust/ca-bundle.pem"
    assert refused(told["proxy"], told["key"], trust)
    other = json.loads((await daemon.coatcheck("session", "create", "--json")).out)
    assert await asyncio.to_thread(refused, other["proxy"]["url"], told["key"], trust)


async def test_ctrl_c_on_a_terminal_reaches_the_command_once(daemon: Served) -> None:
    """The terminal tells both; we wait for the command and end the session."""
    master, slave = pty.openpty()
    running = subprocess.Popen(
        [COATCHECK, "run", "--", *AGENT, "until-signal"],
        cwd=daemon.cwd, env=environment(**daemon.env), stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    try:
        said = b""
        while b'"pid"' not in said or not said.endswith(b"\n"):
            said += await asyncio.to_thread(os.read, master, 4096)
        os.write(master, b"\x03")
        assert await asyncio.to_thread(running.wait, 30) == 5
        said = b""
        while b"came" not in said or b"}" not in said:
            said += os.read(master, 4096)
        assert f'"came": [{signal.SIGINT}]'.encode() in said
    finally:
        end(running.pid)
        running.wait()
        os.close(master)
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_killing_the_command_ends_the_session(daemon: Served) -> None:
    """kill -9 of the child: code 137, and nothing of the session is left."""
    running = daemon.start("run", "--", *AGENT, "wait")
    try:
        assert running.stdout is not None
        told = json.loads(await asyncio.to_thread(running.stdout.readline))
        os.kill(told["pid"], signal.SIGKILL)
        await asyncio.to_thread(running.communicate, timeout=30)
        assert running.returncode == 137
    finally:
        end(running.pid)
        running.wait()
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_a_revoked_session_is_told_and_the_command_goes_on(daemon: Served) -> None:
    """An operator revokes; the user reads why requests fail, and no work of the command is lost."""
    running = daemon.start("run", "--lease", "1", "--", *AGENT, "until-signal")
    try:
        assert running.stdout is not None and running.stderr is not None
        await asyncio.to_thread(running.stdout.readline)
        (session,) = await daemon.sessions()
        assert (await daemon.coatcheck("session", "revoke", session)).code == 0
        warning = ""
        while not warning.startswith("warning: the session is over"):
            warning = await asyncio.to_thread(running.stderr.readline)
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        await asyncio.to_thread(running.communicate, timeout=30)
        assert running.returncode == 5
    finally:
        end(running.pid)
        running.wait()


# --- without a daemon --------------------------------------------------------------------------------

OWN = """\
version: 1
owner: me
credentials:
  openai:
    secret: {secret}
    hosts: [api.openai.com]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
    env: OPENAI_API_KEY
rules:
  - name: models
    hosts: [api.openai.com]
    methods: [GET]
    credentials: [openai]
"""


def test_without_daemon_and_store_it_says_what_to_give(tmp_path: Path) -> None:
    """Code 125: the command was not started."""
    said = coatcheck("run", "--", "touch", "started", cwd=tmp_path)
    assert (said.code, said.out) == (125, "") and not (tmp_path / "started").exists()
    note, _, told = said.error.partition("\n")
    assert note.startswith("note: no daemon answers at ")
    assert told == (
        "error: no daemon answers, and no source of secrets is configured\n"
        "hint: start one (coatcheck serve, coatcheck dev), or give --secret openai=-, "
        "COATCHECK_VAULT_URL or COATCHECK_SECRETS_DIR\n"
    )
    said = coatcheck("run", "--socket", "gone.sock", "--", "true", cwd=tmp_path)
    assert said.code == 125 and "no daemon answers at gone.sock" in said.error


def test_wrong_use_of_run(tmp_path: Path) -> None:
    """A secret without a source, one that the policy does not know, a policy that is bad."""
    said = coatcheck("run", "--secret", "openai", "--", "true", cwd=tmp_path)
    assert said.code == 2 and "--secret openai: it names no file" in said.error
    (tmp_path / "key").write_text("0123456789abcdef")
    said = coatcheck("run", "--secret", "nosuch=key", "--", "true", cwd=tmp_path)
    assert said.code == 125 and "the policy has no credential 'nosuch'" in said.error
    (tmp_path / "bad.yaml").write_text("version: 1\n")
    said = coatcheck("run", "--policy", "bad.yaml", "--secret", "openai=key", "--", "true", cwd=tmp_path)
    assert said.code == 125 and "bad.yaml:1:1: error: " in said.error


async def test_a_daemon_of_its_own_with_secrets_in_files(
    upstream_settings: dict[str, str], origin_server: TlsServer, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """A policy of one's own, and a directory of files; the umask of the command stays the user's."""
    secrets = tmp_path / "secrets/mine"
    secrets.mkdir(parents=True)
    (secrets / "openai").write_text(real_keys["openai"])
    (secrets / "openai").chmod(0o600)
    (tmp_path / "mine.yaml").write_text(OWN.format(secret="file:mine/openai#value"))
    umask = f"{os.umask(0o022):04o}"
    os.umask(int(umask, 8))
    said = await asyncio.to_thread(
        coatcheck, "run", "--policy", "mine.yaml", "--", "/bin/sh", "-c", 'umask; "$@"', "-", *AGENT, "once",
        cwd=tmp_path, env=upstream_settings | {"COATCHECK_SECRETS_DIR": str(tmp_path / "secrets")},
    )  # fmt: skip
    assert (said.code, said.out) == (0, f"{umask}\n200\n"), said.err


async def test_killing_a_run_with_its_own_daemon_leaves_nothing_that_works(
    upstream_settings: dict[str, str], real_keys: dict[str, str], tmp_path: Path
) -> None:
    """kill -9: proxy, keys and sessions were in that process; the handle is a dead string at once."""
    (tmp_path / "key").write_text(real_keys["openai"])
    running = subprocess.Popen(
        [COATCHECK, "run", "--secret", "openai=key", "--state-dir", "own", "--", *AGENT, "wait"],
        cwd=tmp_path, env=environment(**upstream_settings), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    pid = 0
    try:
        assert running.stdout is not None
        told = json.loads(await asyncio.to_thread(running.stdout.readline))
        pid = told["pid"]
        trust = tmp_path / "own/run/trust/ca-bundle.pem"
        assert not await asyncio.to_thread(refused, told["proxy"], told["key"], trust)
        running.kill()
        running.wait()
        assert await asyncio.to_thread(refused, told["proxy"], told["key"], trust)
    finally:
        end(running.pid)
        end(pid)
        running.wait()
    assert real_keys["openai"] not in "".join(
        path.read_bytes().decode("latin-1") for path in (tmp_path / "own").rglob("*") if path.is_file()
    )
