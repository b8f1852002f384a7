"""`coatcheck serve` and `coatcheck dev`: starting, failing to start, ending."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coatcheck.policy.shipped import POLICY
from coatcheck.settings.daemon import Settings
from demo.upstreams.server import TlsServer
from tests.cli.transcript import COATCHECK, Said, coatcheck, environment
from tests.system.cli.asks import ask_with
from tests.system.cli.conftest import Served, alive, end, serving


def test_a_bad_policy_is_told_with_its_lines(good: dict[str, str], tmp_path: Path) -> None:
    """A daemon does not start on it."""
    (tmp_path / "policies/default.yaml").write_text("version: 1\nowner: me\nrulez: []\n")
    said = coatcheck("serve", cwd=tmp_path, env=good)
    assert said.code == 1
    first, second, third = said.error.splitlines()
    assert first == "error: the policy cannot be used"
    assert second.startswith("  default.yaml:3:1: error: ")
    assert third == "hint: coatcheck policy check --help"


def test_settings_lists_every_one(tmp_path: Path) -> None:
    """With default and meaning."""
    said = coatcheck("serve", "--settings", cwd=tmp_path)
    assert said.code == 0
    assert set(re.findall(r"(?m)^(COATCHECK_\w+) \(", said.out)) == {
        f"COATCHECK_{name.upper()}" for name in Settings.model_fields
    }


async def test_a_second_daemon_does_not_start_beside_the_first(daemon: Served) -> None:
    """Two would each miss the other's revocations."""
    said = await asyncio.to_thread(coatcheck, "serve", cwd=daemon.cwd, env=daemon.settings)
    assert said.code == 3
    first, hint = said.error.splitlines()
    assert first.startswith(f"error: a daemon (pid {daemon.process.pid}) already runs here, with the log ")
    assert hint.startswith("hint: see coatcheck status, stop it, or ")
    assert daemon.process.poll() is None


@pytest.mark.needs_debian("curl", "bwrap", "runc")
async def test_a_plain_daemon_is_found_from_every_directory(
    upstream_settings: dict[str, str], origin_server: TlsServer, real_keys: dict[str, str], short_dir: Path
) -> None:
    """`coatcheck serve` with no path at all, and then `run`, a session for a shell and a sandbox, each from
    another directory and with a `cd` inside: all of them reach it, and all trust it."""
    home = short_dir / "h"
    policies, secrets = home / ".config/coatcheck/policies", home / "secrets"
    for directory in (policies, secrets / "keys"):
        directory.mkdir(parents=True)
    (policies / "default.yaml").write_text(
        POLICY.read_text().replace("vault:secret/openai#api_key", "file:keys/openai#value")
    )
    for path in (policies, policies / "default.yaml"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (secrets / "keys/openai").write_text(real_keys["openai"])
    (secrets / "keys/openai").chmod(0o600)
    elsewhere, served_in = short_dir / "elsewhere", short_dir / "served"
    for directory in (elsewhere, served_in):
        directory.mkdir()
    settings = upstream_settings | {
        "HOME": str(home),
        "XDG_STATE_HOME": "",
        "COATCHECK_SECRETS_DIR": "~/secrets",
        "COATCHECK_CONTROL_SOCKET": str(home / ".local/state/coatcheck/run/control.sock"),
    }
    ask = 'cd / && curl -sS https://api.openai.com/v1/models -H "Authorization: Bearer $OPENAI_API_KEY"'
    with serving(served_in, settings, short_dir / "log"):

        async def there(*arguments: str) -> Said:
            return await asyncio.to_thread(
                coatcheck, *arguments, cwd=elsewhere, env={"HOME": str(home), "XDG_STATE_HOME": ""}
            )

        for arguments in (
            ("run", "--credential", "openai", "--", "sh", "-c", ask),
            ("sandbox", "run", "--backend", "namespace", "--", "sh", "-c", ask),
        ):
            said = await there(*arguments)
            assert said.code == 0 and '"object": "list"' in said.out, (arguments, said)
        opened = await there("session", "create", "--credential", "openai", "--style", "sh")
        shell = await asyncio.to_thread(
            subprocess.run, ["/bin/sh", "-ec", f"{opened.out}\n{ask}"],
            cwd=elsewhere, env=environment(), timeout=30, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert '"object": "list"' in shell.stdout, shell.stderr
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 3
    assert not any(elsewhere.iterdir()) and not any(served_in.iterdir())


async def test_state_at_the_earlier_default_is_served_and_how_to_move_it_is_said(
    good: dict[str, str], tmp_path: Path, short_dir: Path
) -> None:
    """An upgraded daemon that began anew elsewhere would have revoked every session."""
    (short_dir / "var/coatcheck/sessions").mkdir(mode=0o700, parents=True)
    (short_dir / "var/coatcheck").chmod(0o700)
    home = short_dir / "h"
    settings = {
        "HOME": str(home),
        "XDG_STATE_HOME": "",
        "COATCHECK_POLICY": str(tmp_path / "policies"),
        "COATCHECK_CONTROL_SOCKET": str(short_dir / "c.sock"),
    }
    with serving(short_dir, settings, short_dir / "log"):
        assert (short_dir / "var/coatcheck/audit/audit.jsonl").is_file()
    command = f"mkdir -p {home}/.local/state && mv -T {short_dir}/var/coatcheck {home}/.local/state/coatcheck"
    assert command in (short_dir / "log").read_text()


async def test_sigterm_drains_and_ends_with_0(daemon: Served) -> None:
    """A clean stop is a success: systemd must not restart it."""
    daemon.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.process.wait, 20) == 0


# --- dev ---------------------------------------------------------------------------------------------


async def test_dev_from_its_own_lines(
    upstream_settings: dict[str, str],
    origin_server: TlsServer,
    real_keys: dict[str, str],
    tmp_path: Path,
    short_dir: Path,
) -> None:
    """What it prints is pasted: a key into OpenBao, a program with handles, a session for a shell. Ctrl-C
    ends it all, OpenBao too."""
    dev = subprocess.Popen(
        [COATCHECK, "dev"], cwd=tmp_path, text=True,
        env=environment(**upstream_settings, TMPDIR=str(short_dir)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert dev.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("curl "):
            line = await asyncio.to_thread(dev.stdout.readline)
            assert line or dev.poll() is None, await asyncio.to_thread(dev.communicate)
            lines.append(line.rstrip("\n"))
        exports = "\n".join(line for line in lines if line.startswith("export "))
        put = next(line for line in lines if "openai api_key=-" in line)
        session = next(line for line in lines if "session create" in line)
        run = next(line for line in lines if " run -- " in line).replace("python agent.py", ask_with())
        paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

        async def paste(script: str, typed: str = "") -> str:
            ran = await asyncio.to_thread(
                subprocess.run, ["/bin/bash", "-ec", f"{exports}\n{script}"],
                cwd="/", env=environment(**paths), timeout=60, input=typed,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        said = await paste(put, f"{real_keys['openai']}\n")
        assert said.startswith("openai api_key: \n") and "version" in said
        assert await paste(run) == "200\n"
        assert "/page/#login=" in await paste("coatcheck page")
        assert await paste(f"{session}\n{ask_with()}") == "200\n"
        assert [seen.genuine for seen in origin_server.seen] == ["openai", "openai"]
        children = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()
        assert children and all(alive(int(pid)) for pid in children)
        dev.send_signal(signal.SIGINT)
        _, err = await asyncio.to_thread(dev.communicate, timeout=30)
        assert dev.returncode == 0 and "Traceback" not in err
        assert not any(alive(int(pid)) for pid in children)
        assert not list(short_dir.iterdir())
    finally:
        end(dev.pid)
        dev.wait()
