"""What a command inherits, and how it is run."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from coatcheck.platform.child_process import Signals, clean_environment, run_child

NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "VAULT_TOKEN", "BAO_TOKEN", "VAULT_ADDR", "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN",
        "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GITHUB_TOKEN", "GH_TOKEN", "NPM_TOKEN",
        "HF_TOKEN", "MY_SECRET",
        "DB_PASSWORD", "STRIPE_APIKEY", "AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS",
        "SSH_AUTH_SOCK",
        "github_token", "DEPLOY_PRIVATE_KEY", "KUBECONFIG", "COATCHECK_VAULT_ROLE_ID", "GITLAB_PAT", "TOKEN",
        "SERVICE_PASSWORD_FILE",
    ],
)  # fmt: skip
def test_secrets_by_name_are_not_passed_on(name: str) -> None:
    """Names that are known, and names that speak for themselves."""
    clean, removed = clean_environment({name: "x", "PATH": "/bin"}, NOTHING, NOTHING)
    assert (clean, removed) == ({"PATH": "/bin"}, (name,))


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "PYTHONPATH",
        "MAX_TOKENS",
        "KEYBOARD",
        "AUTHOR",
        "XAUTHORITY",
        "MONKEY",
    ],
)
def test_plain_variables_are_kept(name: str) -> None:
    """A command that lacks its HOME does not work."""
    assert clean_environment({name: "x"}, NOTHING, NOTHING) == ({name: "x"}, ())


def test_secrets_by_value_and_by_policy() -> None:
    """A login in a URL under any name, and what the policy's credentials are called; --keep-env wins."""
    inherited = {
        "DATABASE_URL": "postgres://app:hunter2@db/app",
        "INDEX_URL": "https://:hunter2@host/",
        "HOMEPAGE": "https://example.org/a@b",
        "ODDLY_NAMED": "x",
        "KEPT_TOKEN": "y",
    }
    clean, removed = clean_environment(inherited, frozenset({"ODDLY_NAMED"}), frozenset({"KEPT_TOKEN"}))
    assert clean == {"HOMEPAGE": "https://example.org/a@b", "KEPT_TOKEN": "y"}
    assert removed == ("DATABASE_URL", "INDEX_URL", "ODDLY_NAMED")


async def run(code: str, *, lease: float = 60.0, **variables: str) -> tuple[int, int]:
    """Exit code and number of renewals of a Python program."""
    renewals = 0

    async def renew() -> bool:
        nonlocal renewals
        renewals += 1
        return True

    signals = Signals()
    try:
        environment = {"PATH": os.environ["PATH"]} | variables
        return await run_child([sys.executable, "-c", code], environment, signals, renew, lease), renewals
    finally:
        signals.close()


async def test_exit_codes_and_signals() -> None:
    """A shell's convention."""
    assert await run("raise SystemExit(3)") == (3, 0)
    assert await run("import os; os.kill(os.getpid(), 9)") == (137, 0)


async def test_the_lease_is_renewed_three_times_in_its_time() -> None:
    """Two renewals may fail before authority is lost."""
    began = time.monotonic()
    code, renewals = await run("import time; time.sleep(1.1)", lease=0.9)
    assert code == 0 and 2 <= renewals <= (time.monotonic() - began) / 0.3


async def test_renewing_stops_when_the_session_is_over() -> None:
    """Nobody knocks at a closed door for hours."""
    asked = 0

    async def renew() -> bool:
        nonlocal asked
        asked += 1
        return False

    signals = Signals()
    try:
        code = await run_child(
            [sys.executable, "-c", "import time; time.sleep(.6)"], {}, signals, renew, 0.15
        )
    finally:
        signals.close()
    assert (code, asked) == (0, 1)


async def test_a_signal_before_the_child_is_remembered() -> None:
    """It came for the command, which need not be started then."""
    signals = Signals()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert signals.early is signal.SIGTERM
    finally:
        signals.close()


async def test_a_child_that_ignores_sigterm_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody waits for ever for a command that does not want to end."""
    monkeypatch.setattr("coatcheck.platform.child_process.KILL_SECONDS", 0.3)
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, time; signal.signal(15, signal.SIG_IGN);"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(30)"
    )
    started = time.monotonic()
    running = asyncio.create_task(run(code))
    while not ready.exists():
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await running)[0] == 137
    assert time.monotonic() - started < 20


async def test_being_cancelled_ends_the_child(tmp_path: Path) -> None:
    """We never leave one behind."""
    pid = tmp_path / "pid"
    code = (
        f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(30)"
    )
    running = asyncio.create_task(run(code))
    while not pid.exists() or not pid.read_text():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not Path(f"/proc/{pid.read_text()}").exists()
