"""In the daemon: keeps what of a sandbox outlives its supervisor and its daemon: record, snapshots, sleep
image.

In the state directory, one place a sandbox, 0700. A record says what must be known to bring it back; no
handle and no secret is in it. Thread-safe; reading a snapshot's manifest blocks for a moment.
"""

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from coatcheck.durable.durability import (
    UNCLAIMED_GENERATION,
    Durability,
    Incarnation,
    RestorePoint,
    Saved,
    line_of,
    sessions_of,
    still_needed,
    to_replace,
)
from coatcheck.durable.entries import Entries, Entry
from coatcheck.durable.recovery import ATTEMPTS
from coatcheck.durable.sandbox import Record, Sandbox, SandboxIdentity, WantedSandbox
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.directory import Snapshot
from coatcheck.durable.snapshots.manifest import SnapshotError
from coatcheck.durable.snapshots.store import Store, StoredSnapshot
from coatcheck.durable.spec import DurableSpec, IdleAction, Saving
from coatcheck.durable.states import State
from coatcheck.platform.private_files import open_private_directory, write_atomically
from coatcheck.sandbox.sandbox import (
    Backend,
    SandboxProblem,
    SandboxRefused,
)
from coatcheck.settings.daemon import Settings

RECORD: Final = "sandbox.json"
SNAPSHOTS: Final = "snapshots"
FORKS: Final = "forks"
ASLEEP: Final = "asleep"
KEY: Final = "snapshots.key"


_RECORDS: Final = TypeAdapter(Record)


class SandboxStore:
    """The places of all sandboxes that can be kept. What it knows of one is in its entry."""

    def __init__(self, settings: Settings, entries: Entries) -> None:
        state = settings.state_dir.absolute()
        self._root = state / "sandboxes"
        self.key_file = state / KEY
        self._most = settings.max_kept_sandboxes
        self.limit = settings.max_snapshots
        """Of snapshots of one sandbox."""
        self._reserve_mib = settings.snapshot_reserve
        self._entries = entries
        self._marks = threading.Lock()
        """Of `Entry.in_use` and `Entry.going`; no disk is read under it."""
        self._lock = threading.RLock()
        """Of `Entry.record`. Not that of the entries: disks are waited for under it."""
        self._read = False

    # --- places ------------------------------------------------------------------------------------------

    def place(self, sandbox_id: str) -> Path:
        return self._root / sandbox_id.removeprefix("sbx_")

    def record(self, sandbox_id: str) -> Record | None:
        entry = self._entries.get(sandbox_id)
        return entry.record if entry is not None else None

    def _records(self) -> list[Record]:
        found = (each.record for each in self._entries.copy().values())
        return [each for each in found if each is not None]

    def _entry(self, sandbox_id: str) -> Entry:
        return self._entries.get(sandbox_id) or Entry(sandbox_id)

    def _store(self, sandbox_id: str) -> Store:
        return Store(self.place(sandbox_id) / SNAPSHOTS, self.limit)

    def asleep(self, sandbox_id: str) -> Path | None:
        """What it fell asleep as, if that was finished."""
        directory = self.place(sandbox_id) / ASLEEP
        return directory if (directory / manifest.NAME).is_file() else None

    def is_saved(self, sandbox_id: str) -> bool:
        """Whether it can be brought back."""
        return self.asleep(sandbox_id) is not None or any(self.snapshots(sandbox_id))

    def held(self) -> frozenset[str] | None:
        """Sessions, over or not, whose handles are in a sandbox or in what was saved of one. None: nobody has
        looked yet."""
        if not self._read:
            return None
        # Without the lock, which is held while disks are waited for: a revocation asks, and waits for none.
        return sessions_of(life for record in self._records() for life in record.lives)

    # --- lives -------------------------------------------------------------------------------------------

    def check_room(self) -> None:
        """SandboxRefused when there is none for one more beside those that are kept, or will be."""
        known = self._entries.copy().values()
        self._check(sum(each.record is not None or each.will_be_kept for each in known))

    def _check(self, count: int) -> None:
        if count >= self._most:
            raise SandboxRefused(
                SandboxProblem.TOO_MANY_SANDBOXES,
                f"{self._most} sandboxes are kept already, running, asleep or as snapshots",
                "Remove one (`coatcheck sandbox rm`), or have COATCHECK_MAX_KEPT_SANDBOXES raised.",
            )

    def next_generation(self, sandbox_id: str, back: RestorePoint | None) -> int:
        """Of its next life and of the sessions that are opened for that: later than all its lives, all that
        was saved of it, what it begins `back` from, and a machine that nobody has claimed. SandboxRefused."""
        lives, saved = self._lives(sandbox_id, back), self._generations(sandbox_id)
        before = back.generation if back is not None else UNCLAIMED_GENERATION
        return max(UNCLAIMED_GENERATION, before, *(each.generation for each in lives), *saved) + 1

    def _lives(self, sandbox_id: str, back: RestorePoint | None) -> tuple[Incarnation, ...]:
        """Those that the next one comes after: its own, or of a clone those of what it is cloned from."""
        if back is not None and back.sandbox != sandbox_id:
            return line_of(back.lives, back.generation)
        record = self.record(sandbox_id)
        return record.lives if record is not None else ()

    def _generations(self, sandbox_id: str) -> list[int]:
        return [each.generation for each in self.snapshots(sandbox_id) if each.generation is not None]

    def begin(
        self,
        sandbox: Sandbox,
        wanted: WantedSandbox,
        identities: Sequence[SandboxIdentity],
        back: RestorePoint | None,
    ) -> Record | None:
        """A new life of `sandbox` is about to start: on disk when this returns. None: it is no microVM, and
        cannot be kept. SandboxRefused when too many are, or when its sessions are of an earlier generation
        than `next_generation` says; OSError."""
        if wanted.choice.backend is not Backend.MICROVM:
            return None
        with self._lock:
            before = self.record(sandbox.id)
            if before is None:
                self._check(len(self._records()))
            lives = self._lives(sandbox.id, back)
            saved = self._generations(sandbox.id)
            generation = min(each.generation for each in identities)
            if generation < self.next_generation(sandbox.id, back):
                raise SandboxRefused(
                    SandboxProblem.SANDBOX_BUSY,
                    f"its sessions are of generation {generation}, which it has had already",
                    "Try again: it gets new sessions.",
                )
            life = Incarnation(
                generation=generation,
                sessions={each.name: each.session for each in identities},
                credentials={each.name: each.credentials for each in identities},
                after=back.generation if back is not None and back.last is not None else None,
            )
            needed = still_needed((*lives, life), (life.generation, *saved))
            record = Record(sandbox, wanted, needed, before.recoveries if before is not None else ())
            place = self.place(sandbox.id)
            open_private_directory(self._root)
            for directory in (place, place / SNAPSHOTS, place / FORKS):
                open_private_directory(directory)
            self._write(record)
            return record

    def _write(self, record: Record) -> None:
        place = self.place(record.sandbox.id)
        write_atomically(place / RECORD, _RECORDS.dump_json(record), overwrite=True)
        self._known(record)

    def _known(self, record: Record) -> None:
        """At its start a daemon has no entry yet: one that is over, until it has looked at what is left."""
        name = record.sandbox.id
        self._entries.setdefault(name, Entry(name, state=State.ENDED)).record = record

    def ended(self, sandbox: Sandbox, *, discarded: bool = False) -> None:
        """How it ended is known to the next daemon, too: what somebody ended must not be restored
        automatically. One that was `discarded` once remains so."""
        with self._lock, contextlib.suppress(OSError):  # a disk that is full is no reason not to end
            if (record := self.record(sandbox.id)) is not None:
                self._write(replace(record, sandbox=sandbox, discarded=record.discarded or discarded))

    def recovering(self, sandbox_id: str, now: float) -> None:
        """It is about to be restored automatically: on disk first, so that no crash forgets how often.
        OSError."""
        with self._lock:
            if (record := self.record(sandbox_id)) is not None:
                self._write(replace(record, recoveries=(*record.recoveries, now)[-ATTEMPTS:]))

    def recoveries(self, sandbox_id: str) -> tuple[float, ...]:
        record = self.record(sandbox_id)
        return record.recoveries if record is not None else ()

    def interrupt(self, sandbox_id: str) -> None:
        """It sleeps because its daemon stops: on disk when this returns. OSError."""
        with self._lock:
            if (record := self.record(sandbox_id)) is not None:
                self._write(replace(record, interrupted=True))

    def interrupted(self) -> tuple[str, ...]:
        """Sandboxes that no daemon has woken since one put them to sleep as it stopped."""
        return tuple(each.sandbox.id for each in self._records() if each.interrupted)

    def spec(self, spec: DurableSpec, record: Record, back: RestorePoint | None) -> DurableSpec:
        """What its supervisor is told beside all else."""
        line = line_of(record.lives, record.generation)
        place = self.place(spec.sandbox.id)
        keeping, savable = record.wanted.keeping, record.wanted.savable
        return replace(
            spec,
            saving=Saving(
                restore=Path(back.snapshot) if back is not None else None,
                template=back.template if back is not None else None,
                snapshot_key=self.key_file,
                reserve_mib=self._reserve_mib,
                snapshots=place,
            ),
            store=place if savable else None,
            ancestors=tuple(sorted(sessions_of(line[1:]))),
            idle_action=IdleAction.SLEEP if keeping.sleeps and savable else IdleAction.END,
        )

    def awake(self, sandbox_id: str) -> None:
        """It runs again: what it fell asleep as is of the past."""
        shutil.rmtree(self.place(sandbox_id) / ASLEEP, ignore_errors=True)

    def forget(self, sandbox_id: str) -> None:
        """All of it is gone, snapshots too."""
        with self._lock:
            if (entry := self._entries.get(sandbox_id)) is not None:
                entry.record = None
            with contextlib.suppress(OSError):  # first: without it the next daemon removes the rest
                (self.place(sandbox_id) / RECORD).unlink()
            shutil.rmtree(self.place(sandbox_id), ignore_errors=True)

    def read_all(self) -> tuple[Record, ...]:
        """At the daemon's start: every sandbox that was kept. What a crash left half made is removed."""
        with self._lock:
            for place in sorted(self._root.iterdir()) if self._root.is_dir() else ():
                if not (place / RECORD).exists():  # which is written before anything is saved
                    shutil.rmtree(place, ignore_errors=True)
                    continue
                with contextlib.suppress(OSError, ValidationError):
                    record = _RECORDS.validate_json((place / RECORD).read_bytes())
                    if self.place(record.sandbox.id) == place:
                        self._known(record)
                for point in (place / FORKS).glob("*"):  # what wanted to begin from it is gone
                    shutil.rmtree(point, ignore_errors=True)
            self._read = True
            return tuple(self._records())

    # --- snapshots ---------------------------------------------------------------------------------------

    def snapshots(self, sandbox_id: str) -> tuple[Saved, ...]:
        """The oldest first. SandboxRefused when they cannot be read at all."""
        store = self._store(sandbox_id)
        if not store.directory.is_dir() or not any(store.directory.iterdir()):
            return ()
        with _as_refusals():
            found = store.list(manifest.open_key(self.key_file))
        return tuple(_saved(each) for each in found)

    def remove(self, sandbox_id: str, name: str) -> None:
        """SandboxRefused when there is none of that name, or somebody begins from it."""
        store, entry = self._store(sandbox_id), self._entry(sandbox_id)
        with _as_refusals(SandboxProblem.UNKNOWN_SNAPSHOT):
            with self._marks:
                if entry.in_use[found := store.find(name)]:
                    raise SandboxRefused(
                        SandboxProblem.SANDBOX_BUSY,
                        f"a sandbox begins from the snapshot {name} just now",
                        "Remove it in a moment.",
                    )
                entry.going[found] += 1
            try:
                store.remove(name)
            finally:
                self._unmark(entry.going, found)

    @contextlib.contextmanager
    def making_room(self, sandbox_id: str, keeping: Durability) -> Iterator[tuple[str, ...]]:
        """Names of the snapshots that another one of this sandbox takes the place of; meanwhile nobody begins
        from them. Blocks at the beginning. SandboxRefused."""
        saved, directory = self.snapshots(sandbox_id), self._store(sandbox_id).directory
        entry = self._entry(sandbox_id)
        with self._marks:
            used = [each.name for each in (*entry.in_use, *entry.going) if each.parent == directory]
            names = to_replace(saved, self.limit, keeping, used)
            entry.going.update(going := [directory / each for each in names])
        try:
            yield names
        finally:
            self._unmark(entry.going, *going)

    @contextlib.contextmanager
    def using(self, sandbox_id: str, saved: Path) -> Iterator[None]:
        """What is saved there stays for as long as the block lasts, which begins a life from it.
        SandboxRefused when it goes just now."""
        entry = self._entry(sandbox_id)
        with self._marks:
            if saved in entry.going:
                raise SandboxRefused(
                    SandboxProblem.UNKNOWN_SNAPSHOT,
                    f"the snapshot {saved.name} is being removed, or replaced by a newer one",
                    "Use another one: `coatcheck sandbox snapshots` lists them.",
                )
            entry.in_use[saved] += 1
        try:
            yield
        finally:
            self._unmark(entry.in_use, saved)

    def _unmark(self, marks: Counter[Path], *snapshots: Path) -> None:
        with self._marks:
            marks.subtract(snapshots)
            for each in snapshots:
                if not marks[each]:
                    del marks[each]

    @contextlib.contextmanager
    def shared(self, back: RestorePoint) -> Iterator[RestorePoint]:
        """Its memory read once, for several that begin from it. Blocks at the beginning. SandboxRefused."""
        with _as_refusals(SandboxProblem.NOT_SAVED):
            template = Snapshot.open(Path(back.snapshot), self.key_file).template()
        try:
            yield replace(back, template=template)
        finally:
            os.close(template)

    def drop(self, fork_point: Path) -> None:
        """What clones were made from is not needed any more."""
        if fork_point.parent.name == FORKS and fork_point.parent.parent.parent == self._root:
            shutil.rmtree(fork_point, ignore_errors=True)

    def saved(self, sandbox_id: str, name: str | None) -> Path:
        """A snapshot's directory; without a name that of its sleep, else of the newest. SandboxRefused."""
        if name is not None:
            with _as_refusals(SandboxProblem.UNKNOWN_SNAPSHOT):
                return self._store(sandbox_id).find(name)
        asleep = self.asleep(sandbox_id)
        if asleep is not None:
            return asleep
        whole = [each for each in self.snapshots(sandbox_id) if each.generation is not None]
        if not whole:
            raise SandboxRefused(
                SandboxProblem.UNKNOWN_SNAPSHOT,
                f"nothing was saved of {sandbox_id}",
                "Take a snapshot while it runs: coatcheck sandbox snapshot.",
            )
        return self._store(sandbox_id).directory / whole[-1].name

    def restore_point(self, sandbox_id: str, directory: Path) -> RestorePoint:
        """What a life begins from that `directory` holds. SandboxRefused when it is not whole and genuine."""
        record = self.record(sandbox_id)
        with _as_refusals(SandboxProblem.NOT_SAVED):
            found = manifest.read(directory, manifest.open_key(self.key_file))
        lives = record.lives if record is not None else ()
        return RestorePoint(str(directory), found.generation, lives, sandbox_id)


def _saved(entry: StoredSnapshot) -> Saved:
    found = entry.manifest
    return Saved(
        entry.name,
        found.origin.created_at if found is not None else None,
        found.generation if found is not None else None,
        entry.bytes_on_disk,
    )


@contextlib.contextmanager
def _as_refusals(problem: SandboxProblem = SandboxProblem.NOT_SAVED) -> Iterator[None]:
    try:
        yield
    except SnapshotError as error:
        raise SandboxRefused(problem, str(error), error.hint) from None
