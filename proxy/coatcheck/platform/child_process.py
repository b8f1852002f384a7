"""A command as our child: handles in its environment in place of secrets, and a lease while it lives."""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

KILL_SECONDS = 10.0
"""After SIGTERM was passed on: a command that has not ended by then is killed, as systemd would."""
RENEWALS_A_LEASE = 3
"""Two may fail, by a busy or restarting daemon, before authority is lost."""

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What somebody sends to us is meant for the command."""

SECRET_NAMES = frozenset(
    {
        "VAULT_TOKEN", "BAO_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
        "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS", "DOCKER_AUTH_CONFIG", "KUBECONFIG", "NETRC", "PGPASSWORD",
        "MYSQL_PWD", "SSH_AUTH_SOCK", "GIT_ASKPASS", "SSH_ASKPASS", "OPENAI_API_KEY", "ANTHROPIC_API_KEY",
        "GITHUB_TOKEN", "GH_TOKEN",
    }
)  # fmt: skip
"""Variables that hold a secret, or lead to one."""

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PAT|CREDENTIALS?|API_?KEY|ACCESS_?KEY|"
    r"PRIVATE_?KEY|SECRET_?KEY|CLIENT_?SECRET|AUTH|BEARER)(?:_(?:ID|FILE|B64|BASE64|VALUE))?$"
    r"|^(?:COATCHECK|VAULT|BAO)_",
    re.IGNORECASE,
)
_LOGIN_IN_URL = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
"""`postgres://user:password@host`, under whatever name."""


def clean_environment(
    inherited: Mapping[str, str], named: frozenset[str], keep: frozenset[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """`inherited` without what holds a secret, and the names that were taken out.

    `named`: variables of the policy's credentials. `keep` wins, and is the user's own word.
    """
    removed = tuple(
        sorted(
            name
            for name, value in inherited.items()
            if name not in keep
            and (
                name in named
                or name.upper() in SECRET_NAMES
                or _SECRET_NAME.search(name)
                or _LOGIN_IN_URL.search(value)
            )
        )
    )
    return {name: value for name, value in inherited.items() if name not in removed}, removed


class Signals:
    """Passes signals on to the child; remembers the first that came before there was one.

    Ctrl-C reaches the whole foreground group of a terminal by itself: then it is only kept from ending
    us, so that we live to end the session.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process: asyncio.subprocess.Process | None = None
        self._early: signal.Signals | None = None
        self._killing: asyncio.TimerHandle | None = None
        for number in (*FORWARDED, signal.SIGINT):
            self._loop.add_signal_handler(number, self._came, number)

    def watch(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        if self._early is not None:
            self._send(self._early)

    @property
    def early(self) -> signal.Signals | None:
        """What came before the child was started: it need not be."""
        return self._early

    def close(self) -> None:
        if self._killing is not None:
            self._killing.cancel()
        for number in (*FORWARDED, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _came(self, number: signal.Signals) -> None:
        if self._process is None:
            self._early = self._early or number
        elif number is not signal.SIGINT or not _in_foreground():
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        if number is signal.SIGTERM and self._killing is None:
            self._killing = self._loop.call_later(KILL_SECONDS, self._send, signal.SIGKILL)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False  # no terminal: nobody but us was told


async def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Signals,
    renew: Callable[[], Awaitable[bool]],
    lease_seconds: float,
    umask: int = -1,
) -> int:
    """Run `command` until it ends, renewing meanwhile; its exit code, 128+n after signal n.

    `renew` returns False when the session is over for good. OSError when the command cannot be started.
    """
    process = await asyncio.create_subprocess_exec(*command, env=dict(environment), umask=umask)
    signals.watch(process)
    renewing = asyncio.create_task(_keep(renew, lease_seconds))
    try:
        code = await process.wait()
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        if process.returncode is None:  # we are being ended ourselves
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return code if code >= 0 else 128 - code


async def _keep(renew: Callable[[], Awaitable[bool]], lease_seconds: float) -> None:
    due = time.monotonic()
    while True:
        # By the clock, not by sleeps: a slow answer must not push the next one back.
        due = max(due + lease_seconds / RENEWALS_A_LEASE, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        if not await renew():
            return
