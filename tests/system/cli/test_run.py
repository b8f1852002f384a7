"""`coatcheck run`: what the command holds, how it ends, and what is left of it afterwards."""

import asyncio
import json
import signal
import time
from pathlib import Path

from demo.upstreams.server import TlsServer
from tests.cli.transcript import coatcheck
from tests.system.cli.agent import AGENT, ENVIRON, refused
from tests.system.cli.conftest import Served, alive, end


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


async def test_killing_coatcheck_run_kills_the_handle_within_a_lease(daemon: Served, short_dir: Path) -> None:
    """kill -9 of ours: nobody is left to end the session or renew its lease, so it lapses."""
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


# --- without a daemon --------------------------------------------------------------------------------


async def test_a_daemon_of_its_own_with_a_secret_that_is_piped_in(
    upstream_settings: dict[str, str],
    origin_server: TlsServer,
    real_keys: dict[str, str],
    tmp_path: Path,
    short_dir: Path,
) -> None:
    """The five-minute path: no Vault, no daemon, nothing on disk, and nothing left behind."""
    said = await asyncio.to_thread(
        coatcheck, "run", "--secret", "openai=-", "--", *AGENT, "once",
        cwd=tmp_path, env=upstream_settings | {"TMPDIR": str(short_dir)}, stdin=real_keys["openai"] + "\n",
    )  # fmt: skip
    assert (said.code, said.out) == (0, "200\n"), said.err
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert not [*short_dir.iterdir(), *tmp_path.iterdir()]
