"""Who is logged in on the page: in memory only, short-lived, few.

A login has two halves. The cookie is out of reach of scripts, but browsers send it to every port of its host;
the key is kept by the page's own origin, port included, but scripts can read it. Neither is worth anything
without the other: not to a script that got into the page, and not to a server on another port of loopback.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coatcheck.control.caller import Action, Caller, Role
from coatcheck.control.grants import Grants
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.decision.ratelimit import Rate, Rates
from coatcheck.state.clock import awake

MAX_LOGINS: Final = 64
MAX_OF_CALLER: Final = 8
"""The longest unused one gives way."""
LIFE_SECONDS: Final = 8 * 3600.0
"""A shift. After it somebody has to show again that they are there."""
IDLE_SECONDS: Final = 30 * 60.0
"""Without any request: the page asks every few seconds for as long as it is open."""
LINK_SECONDS: Final = 120.0
"""Until a link is of no use: from one window to another takes seconds."""
MAX_LINKS: Final = 16
MAX_LINKS_OF_CALLER: Final = 4
"""The oldest one gives way: a caller that asks for many keeps no other out."""
MAX_FAILURES: Final = 10
"""Wrong tokens of one address within FAILURE_SECONDS; beyond it, right ones are not looked at, either."""
FAILURE_SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 1024
"""That failed lately. The oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a browser is given, once. Neither half can be had again."""

    cookie: str
    key: str


@dataclass(slots=True)
class Login:
    """One browser of one caller."""

    name: str
    proof: str
    """How the caller proved itself when it came: a token that is replaced ends what was opened with it."""
    key_digest: bytes
    until: float
    used: float
    """Seconds of the clock that goes on while the machine sleeps."""
    over: bool = False


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    how: str
    proof: str | None
    """How its caller was proven, when that was not by the control API itself."""
    until: float


class Logins:
    """Belongs to the control API's loop."""

    def __init__(self, now: Callable[[], float] = awake) -> None:
        self._now = now
        self._logins: OrderedDict[bytes, Login] = OrderedDict()
        self._links: OrderedDict[bytes, _Link] = OrderedDict()
        """By the digest of the code."""
        self._failures: Rates[str] = Rates(Rate(MAX_FAILURES, FAILURE_SECONDS, MAX_FAILURES), MAX_ADDRESSES)
        """By address."""

    # --- coming --------------------------------------------------------------------------------------------

    def by_token(self, token: str, address: str, grants: Grants) -> tuple[Opened, Caller]:
        """ControlProblem(UNAUTHENTICATED) for a token of nobody, BUSY after too many of them."""
        if self._failures.wait(address, self._now()):
            raise ControlProblem(
                Refusal.BUSY,
                "too many wrong tokens came from this address",
                "Wait a minute, or run `coatcheck page` on the daemon's machine for a link.",
            )
        caller = grants.of_token(token)
        if caller is None:
            raise ControlProblem(
                Refusal.UNAUTHENTICATED,
                "the token belongs to no caller",
                "Use the token whose hash is in the daemon's grants file.",
            )
        self._failures.forget(address)
        return self._open(caller, grants), caller

    def link(self, caller: Caller, how: str = "a link", proof: str | None = None) -> str:
        """A code that logs this caller in once, within LINK_SECONDS. `how` is for the audit log; with `proof`
        it counts only as long as the grants know the caller by it. ControlProblem(BUSY) after too many."""
        check_person(caller)
        code, now = secrets.token_urlsafe(32), self._now()
        while self._links and next(iter(self._links.values())).until <= now:
            self._links.popitem(last=False)
        theirs = [each for each, link in self._links.items() if link.name == caller.name]
        if len(theirs) >= MAX_LINKS_OF_CALLER:
            del self._links[theirs[0]]
        elif len(self._links) >= MAX_LINKS:
            raise ControlProblem(
                Refusal.BUSY, f"{MAX_LINKS} links wait to be opened", "Open yours, or wait two minutes."
            )
        self._links[digest(code)] = _Link(caller.name, how, proof, now + LINK_SECONDS)
        return code

    def forget_links(self) -> None:
        """The grants have changed: a link made with a token that was replaced must not work."""
        self._links.clear()

    def by_link(self, code: str, grants: Grants) -> tuple[Opened, Caller, str]:
        """The login, whose, and how they were proven. ControlProblem(UNAUTHENTICATED) when the code was used,
        or is too old."""
        link = self._links.pop(digest(code), None)
        caller = grants.of_name(link.name) if link is not None and self._now() < link.until else None
        if link is None or caller is None or link.proof not in (None, grants.proof_of(caller.name)):
            raise ControlProblem(
                Refusal.UNAUTHENTICATED,
                "this link was used, or is too old",
                "Run `coatcheck page` again, or log in again.",
            )
        return self._open(caller, grants), caller, link.how

    def _open(self, caller: Caller, grants: Grants) -> Opened:
        check_person(caller)
        opened, now = Opened(secrets.token_urlsafe(32), secrets.token_urlsafe(32)), self._now()
        for cookie, login in tuple(self._logins.items()):
            if self._ended(login):
                self._end(cookie)
        theirs = [cookie for cookie, login in self._logins.items() if login.name == caller.name]
        if len(theirs) >= MAX_OF_CALLER:
            self._end(theirs[0])
        elif len(self._logins) >= MAX_LOGINS:
            raise ControlProblem(
                Refusal.BUSY, f"{MAX_LOGINS} browsers are logged in", "Log one of them out, then try again."
            )
        self._logins[digest(opened.cookie)] = Login(
            caller.name, grants.proof_of(caller.name), digest(opened.key), now + LIFE_SECONDS, now
        )
        return opened

    # --- being there -------------------------------------------------------------------------------------

    def find(self, cookie: str, key: str, grants: Grants) -> tuple[Login, Caller] | None:
        """Who shows both halves, with the grants as they are now."""
        login = self._logins.get(digest(cookie))
        if login is None or not hmac.compare_digest(login.key_digest, digest(key)):
            return None
        caller = self.still(login, grants)
        if caller is None:
            return None
        self._logins.move_to_end(digest(cookie))
        return login, caller

    def still(self, login: Login, grants: Grants) -> Caller | None:
        """The login's caller, as long as it lasts and the grants know them by the same proof. It was used."""
        if self._ended(login) or grants.proof_of(login.name) != login.proof:
            return None
        login.used = self._now()
        return grants.of_name(login.name)

    def leave(self, cookie: str) -> None:
        self._end(digest(cookie))

    def _ended(self, login: Login) -> bool:
        now = self._now()
        return login.over or now >= login.until or now >= login.used + IDLE_SECONDS

    def _end(self, cookie: bytes) -> None:
        login = self._logins.pop(cookie, None)
        if login is not None:
            login.over = True


def check_person(caller: Caller) -> None:
    """Launchers are programs, and what starts agents must not watch over them."""
    if caller.role is Role.LAUNCHER or not caller.may(Action.SEE):
        raise ControlProblem(
            Refusal.FORBIDDEN,
            f"the page is for people, and {caller.name} is a {caller.role}",
            "Log in as an operator or an auditor.",
        )


def digest(text: str) -> bytes:
    """SHA-256: what is kept in place of a cookie, a key, a code or a state."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
