"""`coatcheck serve` and `coatcheck dev` with settings, policies and directories that they refuse."""

import asyncio
import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.transcript import COATCHECK, coatcheck, environment
from tests.system.cli.conftest import end


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
                "put it at {cwd}/nowhere, or name another\nhint: coatcheck policy check --help\n"
            ),
        ),
    ],
)
def test_settings_that_do_not_work_are_told(
    settings: dict[str, str], code: int, err: str, good: dict[str, str], tmp_path: Path
) -> None:
    """Which one, what is wrong with it, what to write."""
    said = coatcheck("serve", cwd=tmp_path, env=good | settings)
    assert (said.code, said.out, said.error) == (code, "", err.replace("{cwd}", str(tmp_path)))


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


# --- dev ---------------------------------------------------------------------------------------------


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
