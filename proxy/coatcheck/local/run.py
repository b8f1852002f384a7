"""`coatcheck run`: one command in a session of its own, which ends with it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coatcheck.certificates.client_environment import joined_with
from coatcheck.client.control import ControlClient, ControlError
from coatcheck.platform.child_process import Signals, clean_environment, run_child
from coatcheck.platform.errors import CoatcheckError

CANNOT_EXECUTE = 126
NOT_FOUND = 127
"""As shells, env(1) and timeout(1) say it."""
MOST_TOLD = 10
"""Refusals in the summary: what a person reads."""
OVER = frozenset({"unknown_session", "session_closed"})
"""Answers to a renewal after which no other will come."""


class CannotUse(CoatcheckError):
    """A store does not answer, or a credential has no usable secret: the command would only meet refusals."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for."""

    command: tuple[str, ...]
    policy: str
    credentials: tuple[str, ...] | None
    """None: all of the policy."""
    tenant: str
    subject: str
    lease_seconds: float | None
    keep: frozenset[str]
    """Variables that stay although they look like secrets."""
    no_proxy: tuple[str, ...]
    named: frozenset[str] = frozenset()
    """Variables of the policy's credentials, also of those that are not asked for."""
    umask: int = -1


async def run_in_session(
    client: ControlClient,
    wanted: Wanted,
    inherited: Mapping[str, str],
    tell: Callable[[str, str], None],
) -> int:
    """The command's exit code; 126 or 127 when it cannot be started. `tell(label, text)` speaks to the user.

    Raises ControlError when no session is to be had, and CannotUse when a store does not answer or a
    credential that was asked for cannot be used: the command is not started then. However the command or we
    end, short of SIGKILL, the session is ended; after SIGKILL its lease lapses.
    """
    signals = Signals()
    try:
        opened = await asyncio.to_thread(_open, client, wanted)
        session = str(opened["session"]["id"])
        try:
            await asyncio.to_thread(_check, client, session, wanted, tell)
            if signals.early is not None:
                return 128 + signals.early
            code = await _run(client, wanted, opened, inherited, signals, tell)
            await asyncio.to_thread(_tell_refusals, client, session, wanted.policy, tell)
            return code
        finally:
            await asyncio.shield(asyncio.to_thread(_end, client, session, tell))
    finally:
        signals.close()


def _open(client: ControlClient, wanted: Wanted) -> dict[str, Any]:
    return client.open_session(
        tenant=wanted.tenant,
        subject=wanted.subject,
        policy=wanted.policy,
        credentials=None if wanted.credentials is None else list(wanted.credentials),
        isolation="none",
        lease_seconds=wanted.lease_seconds,
        listen="tcp",
    )


def _check(client: ControlClient, session: str, wanted: Wanted, tell: Callable[[str, str], None]) -> None:
    """Before the command begins: log-in, and the secrets of what it was granted."""
    try:
        troubles = client.check(session)
    except ControlError as error:
        tell("warning", f"the credentials could not be checked: {error}")
        return
    asked = wanted.credentials or ()
    fatal = [each for each in troubles if each["credential"] is None or each["credential"] in asked]
    if fatal:
        told = [
            f"credential {each['credential']}: {each['message']}"
            if each["credential"]
            else f"{each['store']}: {each['message']}"
            for each in fatal
        ]
        raise CannotUse("\n".join(told), "\n".join(dict.fromkeys(each["hint"] for each in fatal)))
    if troubles:
        names = ", ".join(each["credential"] for each in troubles)
        tell("note", f"requests with these credentials will be refused: {names} ({troubles[0]['message']})")


def _tell_refusals(
    client: ControlClient, session: str, policy: str, tell: Callable[[str, str], None]
) -> None:
    """After the command: what it was not allowed, and what would allow it."""
    try:
        answer = client.refusals(session)
    except ControlError:
        return  # the daemon is gone, or stops: its audit log has them
    refusals = answer["refusals"]
    if not refusals:
        return
    count = sum(each["count"] for each in refusals)
    least = "at least " if answer["missed"] else ""
    lines = [f"{least}{count} {'request was' if count == 1 else 'requests were'} refused:"]
    for each in refusals[:MOST_TOLD]:
        times = f" ({each['count']} times)" if each["count"] > 1 else ""
        lines.append(f"{each['method']} {each['url']}{times}: {each['message']} ({each['reason']})")
    if len(refusals) > MOST_TOLD:
        lines.append(f"and {len(refusals) - MOST_TOLD} others: coatcheck audit tail --session {session}")
    rules = dict.fromkeys(each["remedy"] for each in refusals if each["remedy"].startswith("- "))
    settings = dict.fromkeys(each["remedy"] for each in refusals if not each["remedy"].startswith("- "))
    if rules:
        lines += [f"to allow it, add to the rules of policy {policy}:", *tuple(rules)[:MOST_TOLD]]
    lines += [f"to allow it, set {each}" for each in tuple(settings)[:MOST_TOLD] if each]
    tell("warning", "\n".join(lines))


async def _run(
    client: ControlClient,
    wanted: Wanted,
    opened: dict[str, Any],
    inherited: Mapping[str, str],
    signals: Signals,
    tell: Callable[[str, str], None],
) -> int:
    session = opened["session"]
    given: dict[str, str] = dict(opened["environment"])
    if wanted.no_proxy:
        given["NO_PROXY"] = given["no_proxy"] = ",".join(wanted.no_proxy)
    clean, removed = clean_environment(inherited, wanted.named, wanted.keep)
    lost = [name for name in removed if name not in given]
    if lost:
        tell(
            "note",
            f"not passed on, as they may hold secrets: {', '.join(lost)} (--keep-env NAME passes one on)",
        )
    renewal = _Renewal(client, str(session["id"]), float(session["lease_seconds"]), tell)
    try:
        return await run_child(
            wanted.command,
            joined_with(clean, given),
            signals,
            renewal.renew,
            float(session["lease_seconds"]),
            wanted.umask,
        )
    except FileNotFoundError:
        tell("error", f"{wanted.command[0]}: command not found")
        return NOT_FOUND
    except OSError as error:
        tell("error", f"{wanted.command[0]} cannot be started: {error.strerror}")
        return CANNOT_EXECUTE


class _Renewal:
    """Keeps one session's lease."""

    def __init__(
        self, client: ControlClient, session: str, lease_seconds: float, tell: Callable[[str, str], None]
    ) -> None:
        self._client = client
        self._session = session
        self._lease_seconds = lease_seconds
        self._tell = tell
        self._until = time.monotonic() + lease_seconds
        self._told = False

    async def renew(self) -> bool:
        """False once the session is over. A daemon that does not answer is asked again."""
        asked = time.monotonic()
        try:
            await asyncio.to_thread(self._client.renew, self._session)
        except ControlError as error:
            if error.reason in OVER:
                self._tell(
                    "warning", f"the session is over; the command continues without credentials: {error}"
                )
                return False
            if time.monotonic() > self._until and not self._told:
                self._told = True
                self._tell("warning", f"the lease has lapsed, credentials are refused: {error}")
            return True
        self._until = asked + self._lease_seconds
        return True


def _end(client: ControlClient, session: str, tell: Callable[[str, str], None]) -> None:
    try:
        client.end(session)
    except ControlError as error:
        if error.reason not in OVER:
            tell("warning", f"the session could not be ended; its lease will lapse: {error}")


def policy_file(policy: str | None) -> Path | None:
    """The path that `--policy` names, or None when it is a policy's name in a daemon."""
    if policy is None or not (policy.endswith((".yaml", ".yml")) or "/" in policy):
        return None
    return Path(policy)
