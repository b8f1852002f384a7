"""The embedded OpenBao: what it shows to others, and that it never outlives us."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvac
import psutil
import pytest

from coatcheck.secrets import SecretUnavailable, embedded
from coatcheck.secrets.embedded import EmbeddedVault, EmbeddedVaultError
from coatcheck.secrets.vault import VaultConfig, VaultStore
from tests.known_secrets import known_secret, remember_secret
from tests.secrets.refs import ref


async def test_its_tokens_stand_nowhere(output_dir: Path) -> None:
    """Not in its arguments or log; the token in its environment is dead by the time anybody could read it."""
    log = output_dir / "openbao.log"
    async with EmbeddedVault.start(log=log) as vault:
        process = psutil.Process(vault.process.pid)
        first = remember_secret("OpenBao's first token", process.environ()["BAO_DEV_ROOT_TOKEN_ID"])
        remember_secret("OpenBao's own root token", vault.root_token)
        # LC_CTYPE is Python's own doing (PEP 538).
        assert set(process.environ()) - {"LC_CTYPE"} == {"BAO_DEV_ROOT_TOKEN_ID", "HOME"}
        assert not {first, vault.root_token} & set(process.cmdline())
        text = log.read_text()
        assert "core:" in text and first not in text and vault.root_token not in text
        with pytest.raises(hvac.exceptions.Forbidden):
            hvac.Client(url=vault.url, token=first).auth.token.lookup_self()  # type: ignore[no-untyped-call]
        assert vault.root_token not in repr(vault)


async def test_the_daemons_login_reads_and_does_nothing_else(bao: EmbeddedVault, tmp_path: Path) -> None:
    """Its role reads secrets; it cannot write, list or reach the system, and its file is 0600."""
    await bao.put("least", {"api_key": known_secret("least")})
    login = await bao.daemon_login(tmp_path)
    login = await bao.daemon_login(tmp_path)  # a second start in the same directory
    assert login.secret_id_file.stat().st_mode & 0o777 == 0o600
    remember_secret("the daemon's secret_id", login.secret_id_file.read_text())
    store = VaultStore(VaultConfig(bao.url, login))
    assert (await store.fetch(ref("least"))).reveal() == known_secret("least")
    await store.close()

    client: Any = hvac.Client(url=bao.url)  # type: ignore[no-untyped-call]
    client.auth.approle.login(login.role_id, login.secret_id_file.read_text())
    attempts: list[Callable[[], object]] = [
        lambda: client.secrets.kv.v2.create_or_update_secret("least", {"a": "b"}),
        lambda: client.secrets.kv.v2.list_secrets(""),
        lambda: client.sys.list_mounted_secrets_engines(),
        lambda: client.auth.token.create(),
    ]
    for refused in attempts:
        with pytest.raises(hvac.exceptions.Forbidden):
            refused()


async def test_it_stops_at_the_end_of_the_block(output_dir: Path) -> None:
    """On an error inside the block, too."""
    with pytest.raises(RuntimeError, match="inside"):
        async with EmbeddedVault.start(log=output_dir / "openbao.log") as vault:
            raise RuntimeError("inside")
    assert vault.process.returncode is not None
    assert not psutil.pid_exists(vault.process.pid)


def test_it_dies_with_us_when_we_are_killed(output_dir: Path) -> None:
    """kill -9 of the daemon leaves no OpenBao with secrets behind."""
    program = """
import asyncio, sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from coatcheck.secrets.embedded import EmbeddedVault

async def main():
    async with EmbeddedVault.start(log=Path(sys.argv[1])) as vault:
        await asyncio.sleep(1)  # half a second after its start it prints a banner: our death would be SIGPIPE
        print(vault.process.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
    log = str(output_dir / "openbao.log")
    with subprocess.Popen([sys.executable, "-c", program, log], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        child = psutil.Process(int(daemon.stdout.readline()))
        assert "server" in child.cmdline()
        daemon.kill()
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_one_that_does_not_start_says_where_to_look(
    output_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that exits at once is an error that names its log, not a wait."""
    monkeypatch.setattr(embedded, "_binary", lambda: "/bin/false")
    began = time.monotonic()
    with pytest.raises(EmbeddedVaultError, match=r"did not start; its log is .*openbao\.log"):
        async with EmbeddedVault.start(log=output_dir / "openbao.log"):
            pass
    assert time.monotonic() - began < 60


async def test_what_it_refuses_is_an_error_without_the_value(bao: EmbeddedVault) -> None:
    """A write to a mount that is not there: the error names its kind, and not what was to be written."""
    with pytest.raises(EmbeddedVaultError, match="InvalidPath") as caught:
        await bao.put("x", {"k": known_secret("unwritten")}, mount="absent")
    assert caught.value.__context__ is None
    assert not isinstance(caught.value, SecretUnavailable)
