"""A member of a fleet as a process of its own, which may be killed at any moment and is told what to do.

`python -m tests.system.fleet.member_process SETTINGS` reads one JSON list a line, the name of a function and
its arguments, and answers with one JSON value a line.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coatcheck.decision.policy import Limit, LimitKind, LimitScope, Rule
from coatcheck.settings.daemon import Settings
from coatcheck.state import StateError
from coatcheck.state.buckets import Buckets, ShareAwaited
from tests.system.fleet.fleet import PATIENCE, Daemon, wanted

ROOT = Path(__file__).parents[3]


@dataclass
class MemberProcess:
    """It, from outside."""

    directory: Path
    settings: dict[str, Any]
    command: Sequence[str] = ()
    """What runs it elsewhere, in another network namespace say."""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> "MemberProcess":
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {**self.settings, "state_dir": str(self.directory)}
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, sys.executable, "-m", __name__, json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT,
                env={"PATH": os.environ["PATH"]},
            )  # fmt: skip
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def ask(self, what: str, *about: Any) -> Any:
        """ConnectionError when it dies meanwhile."""
        self.begin(what, *about)
        return self.end()

    def begin(self, what: str, *about: Any) -> None:
        """What is answered by `end`: others are asked meanwhile."""
        if self.process is None or self.process.stdin is None:
            raise ConnectionError("it is dead")
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([what, *about]).encode() + b"\n")
            self.process.stdin.flush()

    def end(self) -> Any:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ConnectionError((self.directory / "log").read_text()[-2000:])
        return json.loads(line)

    def until_it_hears(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while (why := self.ask("stale")) != "":
            assert time.monotonic() < deadline, why
            time.sleep(0.02)


@dataclass
class Inside:
    """It, from inside."""

    daemon: Daemon
    revoked_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.daemon.state.on_revoked(
            lambda taken: self.revoked_at.update(
                {each: time.monotonic() for each in taken.sessions if each not in self.revoked_at}
            )
        )

    def stale(self) -> str:
        return self.daemon.stale()

    def open(self, origin: str, lease: float = 600.0) -> list[Any]:
        """Its id, or nothing and why; and how many seconds it took."""
        began = time.monotonic()
        try:
            asked = wanted(origin)
            session, _ = self.daemon.state.open_session(asked, "tests")
            self.daemon.state.renew(session.id, "tests", lease)
        except StateError as error:
            return ["", error.reason.value, time.monotonic() - began]
        return [session.id, "", time.monotonic() - began]

    def open_many(self, name: str, count: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        for number in range(count):
            began = time.monotonic()
            session, _ = self.daemon.state.open_session(wanted(f"{name}|{number}"), "tests")
            found.append([session.id, time.monotonic() - began])
        return found

    def revoke(self, session: str) -> list[Any]:
        """Whether it was answered; when it was asked for, and how long the answer took."""
        began = time.monotonic()
        try:
            self.daemon.state.revoke(session, "tests")
        except StateError as error:
            return [error.reason.value, began, time.monotonic() - began]
        return ["", began, time.monotonic() - began]

    def look(self) -> dict[str, str]:
        """What each session that is known is refused for; nothing where it lives."""
        state = self.daemon.state
        return {each: state.status(each).value for each in tuple(state.sessions.by_id)}

    def heard(self) -> dict[str, float]:
        """When each was revoked here."""
        return dict(self.revoked_at)

    def told(self) -> list[str]:
        return self.daemon.told()

    def count(self) -> int:
        return len(self.daemon.state.sessions.by_id)

    def load(self, seconds: float, count: int, burst: int) -> int:
        """How many requests pass a tenant's limit of `count` a second, asked for without a pause."""
        return asyncio.run(self._load(seconds, count, burst))

    async def _load(self, seconds: float, count: int, burst: int) -> int:
        limited = Rule(
            "bench", (), frozenset(), (), frozenset(),
            limits=(Limit(LimitKind.REQUESTS, count, 1.0, burst, LimitScope.TENANT),),
        )  # fmt: skip
        buckets, state = Buckets(), self.daemon.state
        buckets.shares = self.daemon.member.limits
        session = next(iter(state.sessions.by_id.values()))
        self.daemon.member.limits.start()
        await asyncio.sleep(0.5)
        passed, ends = 0, time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            answer = buckets.take(session, limited, (), state.clock.now().monotonic)
            if answer is None:
                passed += 1
                await asyncio.sleep(0)
            elif isinstance(answer, ShareAwaited):
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(answer.future), max(0.001, ends - now))
            else:
                await asyncio.sleep(0.001)
        return passed


def main() -> None:
    settings = json.loads(sys.argv[1])
    directory = Path(settings["state_dir"])
    inside = Inside(Daemon(Settings(**settings), directory).start())
    threading.Thread(target=_sweep, args=(inside,), daemon=True).start()
    for line in sys.stdin:
        what, *about = json.loads(line)
        print(json.dumps(getattr(inside, what)(*about)), flush=True)


def _sweep(inside: Inside) -> None:
    while True:
        time.sleep(1)
        with suppress(StateError):
            inside.daemon.state.sweep()


if __name__ == "__main__":
    main()
