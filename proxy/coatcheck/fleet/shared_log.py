"""The shared log in Redis: numbered entries, each sealed for its number and chained to all before it.

Nothing here decides; whoever reads (`follower`) and writes (`publisher`) does. What Redis answers is believed
only where a seal or the chain vouches for it.
"""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from coatcheck.fleet import scripts
from coatcheck.fleet.connection import IDLE_SECONDS, Connector, SharedStateDown, explained
from coatcheck.fleet.seal import Seal, SealBroken
from coatcheck.settings.shared_state import SharedStateServer
from coatcheck.state.change_json import read, written
from coatcheck.state.changes import Change, Closed, Renewed
from coatcheck.state.replica import Entry
from coatcheck.state.shared_database import START, Position

if TYPE_CHECKING:
    from redis import Redis

AT_ONCE: Final = 500
"""Entries, or renewals, of one answer."""
RENEWALS_KEPT: Final = 10_000
"""Of the stream that tells of them; whoever missed more reads all leases again."""
CHUNK: Final = 500
"""Changes in one field of a snapshot: some 200 kB."""
MARGIN: Final = 500
"""Entries that stay in the log although the snapshot has them, for readers that are a little behind."""
NEW_SNAPSHOT_SECONDS: Final = 60
"""A snapshot whose writer died half-way is dropped."""


class LogLost(Exception):
    """The log is not the one that we read before: flushed, rolled back, or gone on elsewhere without us."""


@dataclass(frozen=True, slots=True)
class Head:
    """What Redis says of the log's end. Only `genesis` is sealed."""

    position: Position
    genesis: bytes
    base: int
    """Up to which number the snapshot goes; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Heard:
    time: float
    """Redis's clock, Unix seconds."""
    members: int
    """Daemons that listened in the last half minute."""
    head: Head | None
    entries: tuple[tuple[int, bytes], ...]
    renewals: tuple[tuple[str, str, bytes], ...]
    """Stream id, session, sealed lease."""
    length: int


class SharedLog:
    """One connection, made when it is first needed. Not thread-safe. Each method raises SharedStateDown."""

    def __init__(
        self, server: SharedStateServer, seal: Seal, fleet: str, member: str, timeout: float
    ) -> None:
        self._server, self._seal = server, seal
        self._connector = Connector(server, timeout)
        self.member = member
        """Whose name our entries bear."""
        self._key = f"coatcheck:{{{fleet}}}:"
        self._client: Redis | None = None
        self._loaded: dict[str, str] = {}
        self._used_at = 0.0

    @property
    def connected(self) -> bool:
        return self._client is not None

    def disconnect(self) -> None:
        """What follows begins on a new connection."""
        client, self._client = self._client, None
        self._loaded.clear()
        if client is not None:
            client.close()

    # --- reading -------------------------------------------------------------------------------------------

    def listen(self, after: Position, renewals_after: str) -> Heard:
        """What came after, and that we are here."""
        keys = ("head", "log", "leases", "renewals", "members")
        answer = self._run(
            scripts.LISTEN, keys, after.epoch, after.number, renewals_after, self.member, AT_ONCE
        )
        try:
            time, members, head, entries, renewals, length = answer
            return Heard(
                float(time),
                int(members),
                _head(head),
                tuple((int(name.partition(b"-")[2]), fields[1]) for name, fields in entries),
                tuple((name.decode(), fields[1].decode(), fields[3]) for name, fields in renewals),
                int(length),
            )
        except (ValueError, TypeError, IndexError, UnicodeDecodeError, AttributeError):
            raise SharedStateDown(f"{self._server} holds something else under our keys") from None

    def wait(self, after: Position, renewals_after: str, seconds: float) -> None:
        """Until something came after, or so long."""
        streams = {
            self._key + "log": f"{after.epoch}-{after.number}",
            self._key + "renewals": renewals_after,
        }
        self._do(lambda client: client.xread(streams, count=1, block=max(1, int(seconds * 1000))))

    def founded(self, head: Head) -> None:
        """Whether the epoch is our fleet's. SealBroken: its key is another."""
        self._seal.open(f"genesis|{head.position.epoch}", head.genesis)

    def verified(
        self, position: Position, entries: Sequence[tuple[int, bytes]]
    ) -> tuple[list[Entry], Position]:
        """The entries and how far they go. LogLost when they do not follow on `position`, SealBroken."""
        found: list[Entry] = []
        for number, sealed in entries:
            if number != position.number + 1:
                raise LogLost(f"entries {position.number + 1} to {number - 1} are missing")
            content = json.loads(self._seal.open(_place(position.epoch, number), sealed))
            if content["after"] != position.digest:
                raise LogLost(f"entry {number} follows another entry than the one we know")
            try:
                changes = tuple(read(line) for line in content["changes"])
            except ValueError as error:
                raise SealBroken(f"entry {number}: {error}; is this coatcheck older?") from None
            found.append(Entry(content["by"], content["at"], changes))
            position = Position(position.epoch, number, _digest(position.digest, sealed))
        return found, position

    def leases(self, epoch: int) -> list[Renewed]:
        """All that were renewed and are not over."""
        found = self._do(lambda client: client.hgetall(self._key + "leases"))
        return self.opened(epoch, [(name.decode(errors="replace"), sealed) for name, sealed in found.items()])

    def opened(self, epoch: int, leases: Iterable[tuple[str, bytes]]) -> list[Renewed]:
        """Of sealed leases, those that are genuine: a forged one renews nothing, and hurts nobody."""
        found: list[Renewed] = []
        for session, sealed in leases:
            with suppress(SealBroken):
                content = self._seal.open(f"lease|{epoch}|{session}", sealed)
                found.append(Renewed(session, *json.loads(content)))
        return found

    def snapshot(self, epoch: int) -> tuple[list[Change], Position]:
        """The newest one. LogLost when it is not whole."""
        found = self._do(lambda client: client.hgetall(self._key + "snapshot"))
        try:
            number, digest, count = found[b"about"].decode().split("|")
            chunks = [found[str(each).encode()] for each in range(int(count))]
        except (KeyError, ValueError):
            raise LogLost("the snapshot is not whole") from None
        changes: list[Change] = []
        for each, sealed in enumerate(chunks):
            place = f"snapshot|{epoch}|{number}|{digest}|{each}|{count}"
            changes += [read(line) for line in json.loads(self._seal.open(place, sealed))]
        return changes, Position(epoch, int(number), digest)

    # --- writing -------------------------------------------------------------------------------------------

    def append(self, after: Position, changes: Sequence[Change], at: float) -> Position | None:
        """Put an entry right after `after`; where it stands. None: the log has gone on meanwhile."""
        number = after.number + 1
        sealed = self._seal.seal(_place(after.epoch, number), self._content(after.digest, changes, at))
        digest = _digest(after.digest, sealed)
        over = [change.session for change in changes if isinstance(change, Closed)]
        keys = ("head", "log", "leases", "over")
        entry: list[str | bytes] = [after.digest, digest, sealed, *over]
        done = self._run(scripts.APPEND, keys, after.epoch, after.number, *entry)
        return Position(after.epoch, number, digest) if done == 1 else None

    def renew(self, epoch: int, renewals: Sequence[Renewed]) -> bool:
        """False: the epoch is over."""
        leases: list[str | bytes] = []
        for each in renewals:
            content = json.dumps([each.seconds, each.until]).encode()
            leases += [each.session, self._seal.seal(f"lease|{epoch}|{each.session}", content)]
        done = self._run(scripts.RENEW, ("head", "leases", "renewals", "over"), epoch, RENEWALS_KEPT, *leases)
        return bool(done == 1)

    def found(self, seen: Head | None, epoch: int, changes: Sequence[Change], at: float) -> bool:
        """Begin an epoch in place of what was `seen`. False: somebody else was faster."""
        sealed = self._seal.seal(_place(epoch, 1), self._content(START, changes, at))
        genesis = self._seal.seal(f"genesis|{epoch}", b"")
        before = (seen.position.epoch, seen.position.number, seen.position.digest) if seen else ("", "", "")
        keys = ("head", "log", "leases", "renewals", "snapshot")
        done = self._run(scripts.FOUND, keys, *before, epoch, genesis, _digest(START, sealed), sealed)
        return bool(done == 1)

    def install(self, changes: Sequence[Change], position: Position) -> bool:
        """Put a snapshot in place of the log up to `position`. False: there is a newer one."""
        chunks = [changes[at : at + CHUNK] for at in range(0, len(changes), CHUNK)]
        name = f"snapshot:{self.member}"
        self._do(lambda client: client.delete(self._key + name))
        for each, chunk in enumerate(chunks):
            place = f"snapshot|{position.epoch}|{position.number}|{position.digest}|{each}|{len(chunks)}"
            sealed = self._seal.seal(place, json.dumps([written(change) for change in chunk]).encode())
            self._put(name, str(each), sealed)
        self._put(name, "about", f"{position.number}|{position.digest}|{len(chunks)}".encode())
        keys = ("head", "log", "snapshot", name)
        return bool(self._run(scripts.INSTALL, keys, position.epoch, position.number, MARGIN) == 1)

    def replicated(self, seconds: float, wanted: int) -> bool:
        """Whether so many replicas have all that this connection wrote. Waits up to `seconds`.

        A new connection wrote nothing, and may lead to a primary that has lost what the last one wrote.
        """
        if self._client is None:
            raise SharedStateDown("the connection on which it was written is gone")
        return int(self._do(lambda client: client.wait(wanted, int(seconds * 1000)))) >= wanted

    def _content(self, after: str, changes: Sequence[Change], at: float) -> bytes:
        lines = [written(change) for change in changes]
        return json.dumps({"after": after, "by": self.member, "at": at, "changes": lines}).encode()

    def settle(self, limits: Sequence[tuple[str, bool, float]]) -> list[float]:
        """Add to each limit the seconds that were used of it, or (True) say how many run at once here; how
        many seconds it has been used up for then, or how many run elsewhere."""
        keys = ("members", *(f"limit:{name}" for name, _, _ in limits))
        amounts = [
            each for _, count, much in limits for each in ("running" if count else "spent", repr(much))
        ]
        return [float(answer) for answer in self._run(scripts.SETTLE, keys, self.member, *amounts)]

    def boards(self, own: bytes, *, wanted: bool) -> list[bytes]:
        """Put `own` in place of what this daemon told before, unless it is empty; if they are `wanted`, those
        of the others that are genuine."""
        sealed = self._seal.seal(f"board|{self.member}", own) if own else b""
        found = self._run(scripts.BOARDS, ("boards", "members"), self.member, sealed, int(wanted))
        genuine: list[bytes] = []
        for member, board in zip(found[::2], found[1::2], strict=True):
            with suppress(SealBroken):
                genuine.append(self._seal.open(f"board|{member.decode(errors='replace')}", board))
        return genuine

    # --- the connection ------------------------------------------------------------------------------------

    def _put(self, name: str, field: str, value: bytes) -> None:
        def put(client: "Redis") -> None:
            client.hset(self._key + name, field, value)
            client.expire(self._key + name, NEW_SNAPSHOT_SECONDS)

        self._do(put)

    def _run(self, script: str, keys: Sequence[str], *arguments: str | int | bytes) -> Any:
        def run(client: "Redis") -> Any:
            sha = self._loaded.get(script)
            if sha is None:
                sha = self._loaded[script] = str(client.script_load(script))
            return client.evalsha(sha, len(keys), *(self._key + key for key in keys), *arguments)

        return self._do(run)

    def _do(self, command: Any) -> Any:
        try:
            if self._client is not None and time.monotonic() - self._used_at > IDLE_SECONDS:
                self.disconnect()
            if self._client is None:
                self._client = self._connector.connect()
            self._used_at = time.monotonic()
            return command(self._client)
        except SharedStateDown:
            raise
        except Exception as error:  # noqa: BLE001 - redis-py's, the system's, ssl's: each ends the connection
            self.disconnect()
            raise SharedStateDown(explained(self._server, error)) from None


def _place(epoch: int, number: int) -> str:
    return f"entry|{epoch}|{number}"


def _digest(before: str, sealed: bytes) -> str:
    return sha256(bytes.fromhex(before) + sealed).hexdigest()


def _head(plain: Sequence[bytes | None]) -> Head | None:
    epoch, number, digest, genesis, base = plain
    if epoch is None or number is None or digest is None or genesis is None:
        return None
    return Head(Position(int(epoch), int(number), digest.decode("ascii")), genesis, int(base or b"0"))
