"""`coatcheck run`: what the command holds, how it ends, and what is left of it afterwards."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.cli.transcript import COATCHECK, coatcheck, environment
from tests.system.cli.conftest import Served, alive, end

AGENT = (sys.executable, str(Path(__file__).parent / "asks.py"))
ENVIRON = (sys.executable, "-c", "print(open('/proc/self/environ').read())")


def refused(proxy: str, key: str, trust: Path) -> bool:
    """Whether somebody with a copy of the handle gets nothing, at the proxy that it was for."""
    import ssl

    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"https": proxy}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(trust))),
    )
    request = urllib.request.Request(
        "https://api.openai.com/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        opener.open(request, timeout=20)
    except urllib.error.HTTPError as answer:
        return answer.code in (401, 403)
    except OSError:
        return True
    return False


async def test_the_command_holds_handles_and_no_secret(
    daemon: Served, origin_server: TlsServer, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """Its real environment, as the kernel shows it: no key of ours, of the user's, or of Vault."""
    given = {
        "OPENAI_API_KEY": "sk-users-own-0123456789",
        "AWS_SECRET_ACCESS_KEY": "aws-users-own-0123456789",
        "DATABASE_URL": "postgres://app:database-password@db/app",
        "MY_SERVICE_TOKEN": "token-users-own-0123456789",
        "COATCHECK_VAULT_TOKEN": "vault-users-own-0123456789",
        "PLAIN": "kept",
    }
    said = await daemon.coatcheck("run", "--", *ENVIRON, **given)
    assert said.code == 0
    held = dict(line.split("=", 1) for line in said.out.strip("\0\n").split("\0"))
    assert held["OPENAI_API_KEY"].startswith("sk-cch_") and held["ANTHROPIC_API_KEY"].startswith(
        "sk-ant-cch_"
    )
    assert held["PLAIN"] == "kept" and Path(held["SSL_CERT_FILE"]).is_file()
    for value in (*real_keys.values(), *(value for name, value in given.items() if name != "PLAIN")):
        assert value not in said.out
    assert said.error == (
        "note: not passed on, as they may hold secrets: AWS_SECRET_ACCESS_KEY, COATCHECK_CONTROL_SOCKET, "
        "COATCHECK_VAULT_TOKEN, DATABASE_URL, MY_SERVICE_TOKEN (--keep-env NAME passes one on)\n"
    )
    kept = await daemon.coatcheck("run", "--keep-env", "MY_SERVICE_TOKEN", "--", *ENVIRON, **given)
    assert "MY_SERVICE_TOKEN=token-users-own-0123456789" in kept.out


async def test_the_origin_sees_the_real_key(
    daemon: Served, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """The command's request arrives with the key that it never held, and its session ends with it."""
    said = await daemon.coatcheck("run", "--", *AGENT, "once")
    assert (said.code, said.out) == (0, "200\n"), said.err
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert set((await daemon.sessions()).values()) == {"ended"}


async def test_only_the_credentials_that_were_asked_for(daemon: Served) -> None:
    """`--credential` is a list of what the command may use."""
    said = await daemon.coatcheck("run", "--credential", "anthropic", "--", *ENVIRON)
    assert "ANTHROPIC_API_KEY=sk-ant-cch_" in said.out and "OPENAI_API_KEY" not in said.out
    said = await daemon.coatcheck("run", "--credential", "nosuch", "--", "true")
    assert said.code == 125 and "nosuch" in said.error


async def test_the_exit_code_is_the_commands(daemon: Served) -> None:
    """As a shell would say it; and however it ended, its session is over."""
    for command, code, error in (
        (["/bin/sh", "-c", "exit 7"], 7, ""),
        (["/bin/sh", "-c", "kill -9 $$"], 137, ""),
        (["/bin/sh", "-c", "kill -TERM $$"], 143, ""),
        (["/no/such/command"], 127, "error: /no/such/command: command not found\n"),
        (["/etc/passwd"], 126, "error: /etc/passwd cannot be started: Permission denied\n"),
    ):
        said = await daemon.coatcheck("run", "--", *command)
        assert (said.code, said.out) == (code, ""), command
        assert said.err.endswith(error)
    assert set((await daemon.sessions()).values()) == {"ended"}


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


async def test_sigterm_is_passed_on_and_the_session_ends(daemon: Served) -> None:
    """The command ends as it likes, and its code is ours."""
    running = daemon.start("run", "--", *AGENT, "until-signal")
    try:
        assert running.stdout is not None
        await asyncio.to_thread(running.stdout.readline)
        running.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(running.communicate, timeout=30)
        assert (json.loads(out)["came"], running.returncode) == ([signal.SIGTERM], 5)
    finally:
        end(running.pid)
        running.wait()
    assert set((await daemon.sessions()).values()) == {"ended"}


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


async def test_killing_coatcheck_run_kills_the_handle_within_a_lease(daemon: Served, short_dir: Path) -> None:
    """kill -9 of ours: nobody is left to end the session or renew its lease, so it lapses by itself."""
    running = daemon.start("run", "--lease", "1", "--", *AGENT, "wait")
    pid = 0
    try:
        assert running.stdout is not None
        told = json.loads(await asyncio.to_thread(running.stdout.readline))
        pid = told["pid"]
        trust = short_dir / "run/trust/ca-bundle.pem"
        assert not await asyncio.to_thread(refused, told["proxy"], told["key"], trust)
        running.kill()
        running.wait()
        killed = time.monotonic()
        while not await asyncio.to_thread(refused, told["proxy"], told["key"], trust):
            assert time.monotonic() - killed < 15
        assert alive(pid)  # the orphan lives on, and holds nothing
    finally:
        end(running.pid)
        end(pid)
        running.wait()
    until_status = time.monotonic() + 30
    while set((await daemon.sessions()).values()) != {"lapsed"}:
        assert time.monotonic() < until_status


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
    assert said.error == (
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


async def test_a_daemon_of_its_own_with_a_secret_that_is_piped_in(
    upstream_settings: dict[str, str], origin_server: TlsServer, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """The five-minute path: no Vault, no daemon, nothing on disk, and nothing left behind."""
    before = set(Path("/tmp").glob("coatcheck-*"))
    said = await asyncio.to_thread(
        coatcheck, "run", "--secret", "openai=-", "--", *AGENT, "once",
        cwd=tmp_path, env=upstream_settings, stdin=real_keys["openai"] + "\n",
    )  # fmt: skip
    assert (said.code, said.out) == (0, "200\n"), said.err
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert set(Path("/tmp").glob("coatcheck-*")) <= before and not list(tmp_path.iterdir())


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
