"""Handles of minutes, minted when a program asks and given again until half of their life is over."""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from coatcheck.client.control import ControlClient, ControlError
from coatcheck.metadata.http import Refused

HANDLE_SECONDS: Final = 600.0
AWS_SECONDS: Final = 3600.0
"""SDKs want keys that hold for more than 20 minutes: botocore goes on with shorter ones past their end."""
SHOWN_SECONDS: Final = 1.0
"""For which what the daemon said of a session is believed; it bounds what a guest makes the daemon do."""
THREADS: Final = 2
_OVER: Final = frozenset({"session_closed", "unknown_session"})


@dataclass(frozen=True, slots=True)
class Minted:
    """A handle as the control API answered it. Times are Unix seconds."""

    answer: Mapping[str, Any] = field(repr=False)
    at: float

    @property
    def renew_at(self) -> float:
        return self.at + (float(self.answer["expires_at"]) - self.at) / 2


class Handles:
    """Of all sessions of one sandbox. Belongs to one event loop."""

    def __init__(
        self,
        control: ControlClient,
        *,
        handle_seconds: float = HANDLE_SECONDS,
        aws_seconds: float = AWS_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._control = control
        self._seconds = {False: handle_seconds, True: aws_seconds}
        self._clock = clock
        self._threads = ThreadPoolExecutor(THREADS, "metadata")
        self._shown: dict[str, tuple[float, dict[str, Any]]] = {}
        self._minted: dict[tuple[str, str, bool], Minted] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def show(self, session: str) -> dict[str, Any]:
        """What the control API says of a session. Refused when it is over, or the daemon does not answer."""
        async with self._lock(session):
            at, shown = self._shown.get(session, (0.0, {}))
            if not at <= self._clock() < at + SHOWN_SECONDS:
                shown = await self._ask(lambda: self._control.show(session))
                self._shown[session] = self._clock(), shown
        if shown["session"]["status"] != "live":
            raise Refused(403, "session_over", "this sandbox's session is over; nothing more is given to it")
        return shown

    async def mint(self, session: str, credential: str, *, aws: bool = False) -> Minted:
        """A handle with half of its life before it, or more. Refused when there is no such credential."""
        shown = await self.show(session)
        if credential not in shown["session"]["credentials"]:
            raise Refused(404, "unknown_credential", "this session has no credential of that name")
        key = session, credential, aws
        revoked = {handle["jti"] for handle in shown["handles"] if handle["revoked"]}
        async with self._lock(session):
            known = self._minted.get(key)
            if (
                known is None
                or not known.at <= self._clock() < known.renew_at
                or known.answer["jti"] in revoked
            ):
                seconds = self._seconds[aws]
                answer = await self._ask(lambda: self._control.mint(session, credential, seconds))
                known = self._minted[key] = Minted(answer, self._clock())
        return known

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._minted.clear()

    def _lock(self, session: str) -> asyncio.Lock:
        """One question a session at a time: a guest that asks a hundred times is answered from one."""
        return self._locks.setdefault(session, asyncio.Lock())

    async def _ask[T](self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except ControlError as error:
            if error.reason in _OVER:
                raise Refused(403, "session_over", "this sandbox's session is over") from None
            if error.reason == "unknown_credential":
                raise Refused(
                    404, "unknown_credential", "this session has no credential of that name"
                ) from None
            # Its own words are for operators, and may name what is outside.
            raise Refused(503, "unavailable", "not now; try again", ("Retry-After", "1")) from None
