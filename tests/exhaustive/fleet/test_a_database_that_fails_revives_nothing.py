"""Three daemons on one PostgreSQL, each in a network namespace of its own, killed at random while it fails.

Whatever happens: nothing that was answered as revoked lives at a daemon that lets anything through, and a
daemon that does not hear refuses everything within the bound. Where no commit was lost, every session that
was opened lives on, and each revocation is known everywhere.
"""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.system.fleet.far_away import far_away
from tests.system.fleet.fleet import PATIENCE, new_key
from tests.system.fleet.member_process import MemberProcess
from tests.system.fleet.postgres_server import PASSWORD, PostgresServer, postgres_server, standby_of
from tests.system.redirect.world import Namespace, cable, namespace

pytestmark = pytest.mark.needs_debian("/usr/lib/postgresql", "ip", "nft")

SILENCE = 3.0
PART = (
    "add table inet parted; add chain inet parted every { type filter hook input priority 0; policy drop; }"
)
BOUND = SILENCE + 3.0
"""Until everything is refused: the silence, and what a busy machine adds."""


def at(number: int, end: int) -> str:
    return f"10.78.{number}.{end}"


@dataclass
class Story:
    """The fleet, and what its callers were answered."""

    server: PostgresServer
    members: list[MemberProcess]
    boxes: list[Namespace]
    live: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    """Not answered: either may be."""
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    opened: int = 0

    def one(self) -> MemberProcess:
        return self.chance.choice(self.members)

    def open(self) -> None:
        self.opened += 1
        try:
            session, _, _ = self.one().ask("open", f"issuer|{self.opened}")
        except ConnectionError:
            return
        if session:
            self.live.add(session)

    def revoke(self) -> None:
        session = self.chance.choice(sorted(self.live))
        self.live.discard(session)
        try:
            why, _, _ = self.one().ask("revoke", session)
        except ConnectionError:
            why = "died"
        (self.doubtful if why else self.revoked).add(session)

    def kill_one(self) -> None:
        """At random, at any moment; another begins with what its disk has."""
        member = self.one()
        member.kill()
        member.start()

    def work(self, seconds: float, *, kills: bool = True) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.open()
            if len(self.live) > 5 and self.chance.random() < 0.4:
                self.revoke()
            if kills and self.chance.random() < 0.05:
                self.kill_one()

    def hears(self) -> None:
        for member in self.members:
            member.until_it_hears()

    def silent(self, members: list[MemberProcess]) -> None:
        """Each of them refuses everything within the bound."""
        deadline = time.monotonic() + BOUND
        for member in members:
            while member.ask("stale") == "":
                assert time.monotonic() < deadline, "it goes on although it hears nothing"
                time.sleep(0.02)

    def settled(self) -> None:
        """Nothing answered was lost, at any daemon."""
        self.hears()
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = [member.ask("look") for member in self.members]
            wrong = [
                (number, session, each.get(session))
                for number, each in enumerate(seen)
                for session in self.live | self.revoked
                if (each.get(session) == "live") != (session in self.live)
            ]
            if not wrong:
                return
            assert time.monotonic() < deadline, wrong[:5]
            time.sleep(0.05)

    def ended(self) -> None:
        """Commits were lost: nothing of before lives, and it says why."""
        self.hears()
        for member in self.members:
            deadline = time.monotonic() + PATIENCE
            before = self.live | self.revoked | self.doubtful
            while any(each == "live" for s, each in member.ask("look").items() if s in before):
                assert time.monotonic() < deadline, "a session of before goes on"
                time.sleep(0.05)
        logs = "".join((member.directory / "log").read_text() for member in self.members)
        assert "every session of the fleet ends" in logs
        self.live, self.revoked, self.doubtful = set(), set(), set()
        self.work(2)
        self.settled()


@contextmanager
def story(
    directory: Path, *, standby: bool | None = None, **options: str
) -> Iterator[tuple[Story, list[PostgresServer]]]:
    """`standby`: whether there is one, and whether it is synchronous."""
    with ExitStack() as stack:
        database = stack.enter_context(namespace())
        boxes = [stack.enter_context(namespace()) for _ in range(3)]
        for number, box in enumerate(boxes):
            cable(
                database, f"member{number}", box, "database", (f"{at(number, 1)}/24", f"{at(number, 2)}/24")
            )
        authority = trustme.CA()
        issued = authority.issue_cert(*(at(number, 1) for number in range(3)))
        (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())
        server = PostgresServer(
            directory / "pg",
            options={"listen_addresses": "*", **options},
            certificate=issued.private_key_and_cert_chain_pem.bytes(),
            host_lines=("hostssl all coatcheck 10.78.0.0/16 scram-sha-256",),
            command=tuple(database.command()),
        )
        servers = [server]
        stack.callback(server.kill)
        server.make()
        server.start()
        server.set_up()
        if standby is not None:
            following = stack.enter_context(standby_of(server, directory / "standby", synchronous=standby))
            servers.append(following)
        (directory / "password").write_text(PASSWORD)
        key = new_key(directory / "key")
        members = []
        for number, box in enumerate(boxes):
            hosts = ",".join(f"{at(number, 1)}:{each.port}" for each in servers)
            settings = {
                "shared_state": f"postgresql://coatcheck@{hosts}/coatcheck",
                "shared_state_key": str(key),
                "shared_state_password_file": str(directory / "password"),
                "shared_state_ca_file": str(directory / "ca.pem"),
                "shared_state_max_silence": SILENCE,
            }
            member = MemberProcess(directory / f"member-{number}", settings, box.command())
            stack.callback(member.kill)
            members.append(member.start())
        made = Story(server, members, boxes)
        made.hears()
        yield made, servers


def during(fault: Callable[[], None], work: Callable[[], None]) -> None:
    """The fault, while the fleet works."""
    thread = threading.Thread(target=fault)
    thread.start()
    try:
        work()
    finally:
        thread.join()


@pytest.mark.parametrize("how", ["killed at once", "stopped", "paused"])
def test_sessions_go_on_after_a_database_that_was_away(short: Path, how: str) -> None:
    """Killed as by -m immediate, stopped in order, paused by SIGSTOP: all is refused while it is away."""
    with story(short) as (fleet, [server]):
        fleet.work(2)

        def fault() -> None:
            time.sleep(0.5)
            if how == "paused":
                server.send(signal.SIGSTOP)
            elif how == "stopped":
                server.stop()
            else:
                server.kill()

        during(fault, lambda: fleet.work(1.5, kills=False))
        fleet.silent(fleet.members)
        if how == "paused":
            server.send(signal.SIGCONT)
        else:
            server.start()
        fleet.hears()
        fleet.work(2)
        fleet.settled()


def test_sessions_go_on_after_the_network_was_parted(short: Path) -> None:
    """One daemon hears nothing and refuses everything; the others go on and revoke. Then all are parted."""
    with story(short) as (fleet, _):
        fleet.work(2)
        far, box = fleet.members[0], fleet.boxes[0]
        box.run("nft", PART)
        fleet.members = fleet.members[1:]
        fleet.work(1)
        fleet.silent([far])
        fleet.work(1)
        fleet.settled()
        for each in fleet.boxes[1:]:
            each.run("nft", PART)
        fleet.silent(fleet.members)
        for each in fleet.boxes:
            each.run("nft", "delete table inet parted")
        fleet.members = [far, *fleet.members]
        fleet.hears()
        fleet.work(2)
        fleet.settled()


def test_sessions_go_on_at_a_promoted_synchronous_standby(short: Path) -> None:
    """The primary is killed in the middle of the work; daemons find the other host by themselves."""
    with story(short, standby=True) as (fleet, [primary, standby]):
        fleet.work(2)

        def fault() -> None:
            time.sleep(0.5)
            primary.kill()
            standby.promote()

        during(fault, lambda: fleet.work(3))
        fleet.hears()
        fleet.work(2)
        fleet.settled()
        assert "shared_state_founded" not in fleet.members[1].ask("told")[2:]


def test_nothing_is_answered_while_the_synchronous_standby_is_parted(short: Path) -> None:
    """A primary alone must not be trusted: another may have been promoted."""
    with story(short, standby=True) as (fleet, [_, standby]):
        fleet.work(2)
        standby.send(signal.SIGSTOP)
        fleet.silent(fleet.members)
        session = min(fleet.live)
        fleet.live.discard(session)
        fleet.doubtful.add(session)
        assert fleet.members[0].ask("revoke", session)[0] == "not_durable"
        standby.send(signal.SIGCONT)
        fleet.hears()
        fleet.work(1)
        fleet.settled()


@pytest.mark.parametrize("how", ["an old backup", "an asynchronous standby"])
def test_everything_ends_where_commits_were_lost(short: Path, how: str) -> None:
    """It is noticed by daemons that knew more, one that was killed meanwhile too; the log says why."""
    with story(short, standby=False if "standby" in how else None) as (fleet, servers):
        fleet.work(2, kills=False)
        backup = servers[0].backup() if how == "an old backup" else None
        if backup is None:
            servers[1].promote()  # what is committed from here on, it never hears of
        fleet.hears()
        fleet.work(2)
        fleet.settled()
        if backup is None:
            servers[0].kill()
        else:
            servers[0].restore(backup)
        fleet.kill_one()
        fleet.ended()


def test_sessions_go_on_after_the_databases_disk_was_full(short: Path) -> None:
    """Nothing can be committed: what is asked for is refused, and so is everything after the bound."""
    small = short / "pg"
    small.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=220m,mode=755", "tmpfs", str(small)), check=True)
    try:
        with story(short, wal_keep_size="16MB", max_wal_size="48MB") as (fleet, [server]):
            fleet.work(2)
            filler = small / "filler"
            subprocess.run(("sh", "-c", f"cat /dev/zero > {filler}"), stderr=subprocess.DEVNULL, check=False)
            _fill_what_is_left(server)
            fleet.silent(fleet.members)
            filler.unlink(missing_ok=True)
            server.kill()
            server.start()
            fleet.hears()
            fleet.work(2)
            fleet.settled()
    finally:
        subprocess.run(("umount", "-l", str(small)), check=True)


def _fill_what_is_left(server: PostgresServer) -> None:
    """Of the room in its own log: until it cannot go on."""
    import psycopg

    deadline = time.monotonic() + 2 * PATIENCE
    with suppress(psycopg.Error):
        while time.monotonic() < deadline:
            server.do("SELECT pg_logical_emit_message(true, 'full', repeat('x', 1000000))")
    assert "No space left on device" in server.log()


def test_two_hundred_milliseconds_of_latency_change_nothing_but_the_time(short: Path) -> None:
    """To the database and back, for every daemon."""
    with postgres_server(short / "pg") as server, far_away(server.port, 0.2) as port, ExitStack() as stack:
        (short / "password").write_text(PASSWORD)
        settings = {
            "shared_state": f"postgresql://coatcheck@127.0.0.1:{port}/coatcheck",
            "shared_state_key": str(new_key(short / "key")),
            "shared_state_password_file": str(short / "password"),
        }
        members = [MemberProcess(short / f"member-{number}", settings) for number in range(3)]
        for each in members:
            stack.callback(each.kill)
            each.start()
        fleet = Story(server, members, [])
        fleet.hears()
        fleet.work(15)
        fleet.settled()
        assert len(fleet.live) > 3
