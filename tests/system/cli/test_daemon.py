"""`coatcheck serve` and `coatcheck dev`: starting, failing to start, ending."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coatcheck.policy.shipped import POLICY
from coatcheck.settings.daemon import Settings
from demo.upstreams.server import TlsServer
from tests.cli.transcript import COATCHECK, coatcheck, environment
from tests.system.cli.asks import ask_with
from tests.system.cli.conftest import Served, alive, end


@pytest.fixture
def good(tmp_path: Path, short_dir: Path) -> dict[str, str]:
    """Settings with which a daemon starts."""
    (tmp_path / "policies").mkdir(mode=0o755)
    shutil.copy(POLICY, tmp_path / "policies/default.yaml")
    return {
        "COATCHECK_STATE_DIR": str(tmp_path / "state"),
        "COATCHECK_RUNTIME_DIR": str(short_dir / "run"),
        "COATCHECK_LOG_LEVEL": "error",
    }


@pytest.mark.parametrize(
    ("settings", "code", "err"),
    [
        (
            {"COATCHECK_PROXY_PORT": "many"},
            2,
            (
                "error: COATCHECK_PROXY_PORT: Input should be a valid integer, unable to parse "
                "string as an integer\n"
                "hint: COATCHECK_PROXY_PORT: Port of the shared proxy listener. "
                "Unset: there is no shared listener, and each session has its own\n"
            ),
        ),
        (
            {"COATCHECK_PROXY_PROT": "8080"},
            2,
            (
                "error: COATCHECK_PROXY_PROT is not a Coatcheck setting\n"
                "hint: did you mean COATCHECK_PROXY_PORT? all of them: coatcheck serve --settings\n"
            ),
        ),
        (
            {"COATCHECK_VAULT_URL": "https://vault.example.com"},
            2,
            (
                "error: vault_login is token: set COATCHECK_VAULT_TOKEN_FILE\n"
                "hint: see coatcheck serve --settings\n"
            ),
        ),
        (
            {"COATCHECK_VAULT_URL": "http://vault.example.com", "COATCHECK_VAULT_TOKEN": "x"},
            2,
            (
                "error: the Vault URL must be https:// (plain http is for a server on loopback only)\n"
                "hint: see coatcheck serve --settings\n"
            ),
        ),
        (
            {"COATCHECK_POLICY": "nowhere"},
            1,
            (
                "error: the policy cannot be used\n  nowhere: error: there is no such file; "
                "put it at nowhere, or name another\nhint: coatcheck policy check --help\n"
            ),
        ),
    ],
)
def test_settings_that_do_not_work_are_told(
    settings: dict[str, str], code: int, err: str, good: dict[str, str], tmp_path: Path
) -> None:
    """Which one, what is wrong with it, what to write."""
    said = coatcheck("serve", cwd=tmp_path, env=good | settings)
    assert (said.code, said.out, said.error) == (code, "", err)


def test_a_bad_policy_is_told_with_its_lines(good: dict[str, str], tmp_path: Path) -> None:
    """A daemon does not start on it."""
    (tmp_path / "policies/default.yaml").write_text("version: 1\nowner: me\nrulez: []\n")
    said = coatcheck("serve", cwd=tmp_path, env=good)
    assert said.code == 1
    first, second, third = said.error.splitlines()
    assert first == "error: the policy cannot be used"
    assert second.startswith("  default.yaml:3:1: error: ")
    assert third == "hint: coatcheck policy check --help"


def test_a_port_that_is_taken(good: dict[str, str], tmp_path: Path) -> None:
    """Which one, and how to find who has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = coatcheck("serve", "--proxy-port", str(port), cwd=tmp_path, env=good)
    assert said.code == 3
    assert re.match(
        rf"error: a listener cannot be opened: .*'127\.0\.0\.1', {port}.*in use\nhint: another", said.err
    )


def test_a_state_directory_that_others_may_read(good: dict[str, str], tmp_path: Path) -> None:
    """It is refused, not repaired: somebody may hold a copy of its keys."""
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o755)
    said = coatcheck("serve", cwd=tmp_path, env=good)
    assert said.code == 3
    assert said.error == (
        f"error: {tmp_path}/state is open to other users (mode 0755, wanted 0700)\n"
        f"hint: check who read or changed what is in it, then: chmod 0700 {tmp_path}/state\n"
    )


def test_a_settings_file_with_a_mistake(good: dict[str, str], tmp_path: Path) -> None:
    """Unknown keys and wrong syntax, by the file's name; values are not repeated."""
    config = tmp_path / "config.toml"
    config.write_text('vault_tokn = "hidden-value"\n')
    said = coatcheck("serve", cwd=tmp_path, env=good | {"COATCHECK_CONFIG": str(config)})
    assert said.code == 2 and f"vault_tokn in {config} is not a Coatcheck setting" in said.error
    assert "did you mean vault_token?" in said.error and "hidden-value" not in said.err
    config.write_text("proxy_port =\n")
    said = coatcheck("serve", cwd=tmp_path, env=good | {"COATCHECK_CONFIG": str(config)})
    assert said.code == 2 and f"the settings file {config} is not TOML" in said.error
    said = coatcheck("serve", cwd=tmp_path, env=good | {"COATCHECK_CONFIG": "gone.toml"})
    assert said.code == 2 and "gone.toml, which is not a file" in said.error


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
    assert said.code == 3 and "Traceback" not in said.err and said.err.startswith("error: another ")
    assert daemon.process.poll() is None


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


async def test_dev_keeps_a_directory_that_was_named(
    upstream_settings: dict[str, str], tmp_path: Path, short_dir: Path
) -> None:
    """`--state-dir` is kept, without the root token, and the same CA serves the next time."""
    prints = []
    for _ in range(2):
        dev = subprocess.Popen(
            [COATCHECK, "dev", "--state-dir", str(short_dir / "kept")], cwd=tmp_path,
            env=environment(**upstream_settings), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert dev.stdout is not None
            while not (await asyncio.to_thread(dev.stdout.readline)).startswith("curl "):
                assert dev.poll() is None
            said = coatcheck(
                "ca", "bundle", "--state-dir", short_dir / "kept/state", "--out", "t", cwd=tmp_path
            )
            assert said.code == 0
            prints.append((tmp_path / "t/coatcheck-ca.pem").read_bytes())
            dev.send_signal(signal.SIGINT)
            await asyncio.to_thread(dev.communicate, timeout=30)
        finally:
            end(dev.pid)
            dev.wait()
    assert prints[0] == prints[1]
    assert (
        not (short_dir / "kept/root-token").exists() and (short_dir / "kept/state/audit/audit.jsonl").exists()
    )


def test_dev_with_a_bad_policy_starts_nothing(tmp_path: Path) -> None:
    """The policy is read first."""
    (tmp_path / "bad.yaml").write_text(json.dumps({"version": 2}))
    said = coatcheck("dev", "--policy", "bad.yaml", "--state-dir", "s", cwd=tmp_path)
    assert said.code == 1 and "bad.yaml:1:" in said.error
    assert not list((tmp_path / "s").glob("openbao*"))
