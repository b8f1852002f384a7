"""What of a sandbox is on disk, and what a daemon that comes later makes of it."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.decision.session import Isolation
from coatcheck.durable import store as keeping
from coatcheck.durable.backends import Choice
from coatcheck.durable.durability import Durability, RestorePoint
from coatcheck.durable.entries import Entries, Entry
from coatcheck.durable.sandbox import (
    Sandbox,
    SandboxIdentity,
    WantedSandbox,
    WantedVolume,
)
from coatcheck.durable.snapshots import manifest
from coatcheck.durable.snapshots.manifest import Image, Manifest, Origin, Surroundings
from coatcheck.durable.store import ASLEEP, FORKS, RECORD, SNAPSHOTS, SandboxStore
from coatcheck.platform.private_files import write_atomically
from coatcheck.sandbox.resources import Resources
from coatcheck.sandbox.sandbox import Backend, Ending, SandboxProblem, SandboxRefused, SandboxState
from coatcheck.settings.daemon import Settings

CHOICE = Choice(Backend.MICROVM, Isolation.EMULATED, "no KVM here", "image")
WANTED = WantedSandbox(
    "acme", "agent", "default", "launcher", CHOICE, {"memory": 256},
    (WantedVolume("work", "/work", 16),), 60.0, keeping=Durability(sleeps=True),
)  # fmt: skip
NOTHING = Image(0, ())
AROUND = Surroundings(
    isolation=Isolation.EMULATED, memory_mib=256, cpus=1, balloon=False, disk_mib=16, volumes=0, qemu="q",
    qemu_version="9", kernel="k", initrd="i", root="r", processor="", tsc_khz=None,
)  # fmt: skip


def sandbox(name: str = "sbx_0000000000000001") -> Sandbox:
    now = time.time()
    return Sandbox(
        name, "acme", "agent", "default", "launcher", Backend.MICROVM, Isolation.EMULATED, "why", {}, now,
        now + 60, Resources(256, 1, 16, 64),
    )  # fmt: skip


def people(*sessions: str, generation: int = 2) -> Sequence[SandboxIdentity]:
    return [
        SandboxIdentity(name, session, "socket", 120.0, {}, "ca", "bundle", "trust", ("api",), generation)
        for name, session in zip(("agent", "tool"), sessions, strict=False)
    ]


def save(
    keeper: SandboxStore, directory: Path, generation: int, sandbox_id: str = "sbx_0000000000000001"
) -> Path:
    """A snapshot as the machine writes it, of nothing."""
    directory.mkdir(mode=0o700)
    for name in ("memory", "devices", "overlay"):
        (directory / name).touch()
    made = Manifest(
        Origin(sandbox_id, (), 1_000.0 + generation), generation, AROUND, NOTHING, NOTHING, NOTHING
    )
    manifest.write(directory, made, manifest.open_key(keeper.key_file))
    return directory


def keeper(directory: Path, entries: Entries | None = None, **settings: int) -> SandboxStore:
    return SandboxStore(Settings(state_dir=directory, **settings), Entries() if entries is None else entries)  # type: ignore[arg-type]


def begin(
    keeper: SandboxStore, *sessions: str, back: RestorePoint | None = None, of: Sandbox | None = None
) -> int:
    """A life; its generation."""
    place = of or sandbox()
    sessions_of_it = people(*sessions, generation=keeper.next_generation(place.id, back))
    record = keeper.begin(place, WANTED, sessions_of_it, back)
    assert record is not None
    return record.generation


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By the next daemon, which knows nothing else; and until it has looked it says that it does not know."""
    first = keeper(tmp_path)
    begin(first, "ses_a", "ses_t")
    again = keeper(tmp_path)
    assert again.held() is None
    assert again.read_all() == (first.record("sbx_0000000000000001"),)
    assert again.held() == frozenset({"ses_a", "ses_t"})


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    """A sandbox that sleeps wakes after an update."""
    first = keeper(tmp_path)
    begin(first, "ses_a")
    file = first.place("sbx_0000000000000001") / RECORD
    said = json.loads(file.read_bytes())
    said["sandbox"] |= said["sandbox"].pop("resources")  # four fields of the sandbox itself
    file.write_text(json.dumps(said))
    assert keeper(tmp_path).read_all() == (first.record("sbx_0000000000000001"),)


def test_each_life_is_a_new_generation_and_knows_where_it_came_from(tmp_path: Path) -> None:
    """Also when an old snapshot is restored after many others; whose handles are held is told by its line."""
    kept = keeper(tmp_path)
    kept.read_all()
    place = kept.place("sbx_0000000000000001")
    assert begin(kept, "ses_1") == 2
    first = save(kept, place / SNAPSHOTS / "first", 2)
    assert begin(kept, "ses_2", back=kept.restore_point("sbx_0000000000000001", first)) == 3
    second = save(kept, place / SNAPSHOTS / "second", 3)
    assert begin(kept, "ses_3", back=kept.restore_point("sbx_0000000000000001", first)) == 4
    assert kept.held() == frozenset({"ses_1", "ses_2", "ses_3"})
    record = kept.record("sbx_0000000000000001")
    assert record is not None
    assert [(each.generation, each.after) for each in record.lives] == [(2, None), (3, 2), (4, 2)]
    kept.remove("sbx_0000000000000001", second.name)
    assert begin(kept, "ses_4", back=kept.restore_point("sbx_0000000000000001", first)) == 5
    assert kept.held() == frozenset({"ses_1", "ses_4"})  # nothing holds the strings of the others any more


def test_sessions_of_a_generation_that_it_has_had_begin_no_life(tmp_path: Path) -> None:
    """Two that begin at once, or a snapshot that came in meanwhile: a generation is of one life only."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    late = kept.next_generation("sbx_0000000000000001", None)
    begin(kept, "ses_2")
    with pytest.raises(SandboxRefused) as refused:
        kept.begin(sandbox(), WANTED, people("ses_3", generation=late), None)
    assert refused.value.problem is SandboxProblem.SANDBOX_BUSY
    assert kept.held() is None or "ses_3" not in kept.held()  # type: ignore[operator]
    save(kept, kept.place("sbx_0000000000000001") / SNAPSHOTS / "imported", 8)
    assert kept.next_generation("sbx_0000000000000001", None) == 9


def test_a_clone_takes_over_the_line_and_no_more(tmp_path: Path) -> None:
    """What became of its parent after the snapshot is not its past."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    saved = save(kept, kept.place("sbx_0000000000000001") / FORKS / "point", 2)
    begin(kept, "ses_2", back=kept.restore_point("sbx_0000000000000001", saved))
    back = kept.restore_point("sbx_0000000000000001", saved)
    other = sandbox("sbx_0000000000000002")
    assert begin(kept, "ses_c", back=back, of=other) == 3
    clone = kept.record(other.id)
    assert clone is not None
    assert [dict(each.sessions) for each in clone.lives] == [{"agent": "ses_1"}, {"agent": "ses_c"}]
    kept.drop(saved)
    assert not saved.exists()


def test_what_is_dropped_is_a_fork_point_and_nothing_else(tmp_path: Path) -> None:
    """Its place comes from a supervisor, which reads what a guest says."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    saved = save(kept, kept.place("sbx_0000000000000001") / SNAPSHOTS / "mine", 1)
    outside = tmp_path / FORKS / "x"
    outside.mkdir(parents=True)
    for directory in (saved, outside, tmp_path):
        kept.drop(directory)
        assert directory.exists()


def test_what_is_restored_without_a_name_is_its_sleep_and_else_the_newest(tmp_path: Path) -> None:
    """And what was altered is nothing to go on from."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    place = kept.place("sbx_0000000000000001")
    with pytest.raises(SandboxRefused) as nothing:
        kept.saved("sbx_0000000000000001", None)
    assert nothing.value.problem is SandboxProblem.UNKNOWN_SNAPSHOT
    save(kept, place / SNAPSHOTS / "new", 2)
    save(kept, place / SNAPSHOTS / "old", 1)
    assert kept.saved("sbx_0000000000000001", None).name == "new"
    save(kept, place / ASLEEP, 1)
    assert kept.saved("sbx_0000000000000001", None).name == ASLEEP
    kept.awake("sbx_0000000000000001")
    altered = place / SNAPSHOTS / "old" / manifest.NAME
    altered.write_bytes(altered.read_bytes().replace(b'"generation": 1', b'"generation": 7'))
    with pytest.raises(SandboxRefused, match="altered"):
        kept.restore_point("sbx_0000000000000001", altered.parent)
    names = [(each.name, each.generation) for each in kept.snapshots("sbx_0000000000000001")]
    assert names == [("new", 2), ("old", None)]


def test_nobody_begins_from_what_goes_and_nothing_goes_that_somebody_begins_from(tmp_path: Path) -> None:
    """Not by hand, and not because a newer one takes its place: that takes the next one's."""
    kept, sandbox_id = keeper(tmp_path, max_snapshots=2), "sbx_0000000000000001"
    begin(kept, "ses_1")
    place = kept.place(sandbox_id) / SNAPSHOTS
    first, second = (save(kept, place / f"auto-{each}", each) for each in (1, 2))
    rotates = Durability(rotates=True)
    with kept.using(sandbox_id, first), kept.using(sandbox_id, first):
        with kept.using(sandbox_id, first):
            pass
        with pytest.raises(SandboxRefused, match="begins from the snapshot auto-1") as busy:
            kept.remove(sandbox_id, "auto-1")
        assert busy.value.problem is SandboxProblem.SANDBOX_BUSY
        with kept.making_room(sandbox_id, rotates) as going:
            assert going == ("auto-2",)
            with (
                pytest.raises(SandboxRefused, match="auto-2 is being removed, or rep"),
                kept.using(sandbox_id, second),
            ):
                pass
            with kept.making_room(sandbox_id, rotates) as others:
                assert others == ()
    with kept.making_room(sandbox_id, rotates) as going:
        assert going == ("auto-1",)
    with kept.using(sandbox_id, second):
        pass
    kept.remove(sandbox_id, "auto-1")
    assert [each.name for each in kept.snapshots(sandbox_id)] == ["auto-2"]
    kept.remove(sandbox_id, "auto-2")  # no mark is left on it
    assert kept.snapshots(sandbox_id) == ()


@pytest.mark.parametrize("name", ["..", "a/b", "nothing", ".hidden"])
def test_a_name_leads_to_a_snapshot_or_nowhere(tmp_path: Path, name: str) -> None:
    """It comes from a caller, and becomes a path."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    for use in (
        lambda: kept.saved("sbx_0000000000000001", name),
        lambda: kept.remove("sbx_0000000000000001", name),
    ):
        with pytest.raises(SandboxRefused) as caught:
            use()
        assert caught.value.problem is SandboxProblem.UNKNOWN_SNAPSHOT


def test_no_more_are_kept_than_the_operator_has_room_for(tmp_path: Path) -> None:
    """The refusal says what to do; one that is forgotten makes room, and leaves nothing."""
    entries = Entries()
    kept = keeper(tmp_path, entries, max_kept_sandboxes=1)
    begin(kept, "ses_1")
    other = sandbox("sbx_0000000000000002")
    with pytest.raises(SandboxRefused, match="kept already"):
        kept.check_room()
    with pytest.raises(SandboxRefused) as caught:
        kept.begin(other, WANTED, people("ses_2"), None)
    assert caught.value.problem is SandboxProblem.TOO_MANY_SANDBOXES
    kept.forget("sbx_0000000000000001")
    assert not kept.place("sbx_0000000000000001").exists()
    entries["sbx_0000000000000003"] = Entry("sbx_0000000000000003", WANTED)
    with pytest.raises(SandboxRefused):
        kept.check_room()  # that one will be kept in a moment
    del entries["sbx_0000000000000003"]
    kept.check_room()
    assert begin(kept, "ses_2", of=other) == 2


def test_whom_a_stopping_daemon_put_to_sleep_the_next_one_knows(tmp_path: Path) -> None:
    """Until it runs again; how it ended once, and how often it came back, is no less known for it."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    begin(kept, "ses_2", of=sandbox("sbx_0000000000000002"))
    kept.recovering("sbx_0000000000000001", 1_000.0)
    kept.interrupt("sbx_0000000000000001")
    kept.interrupt("sbx_0000000000000009")  # nobody's
    again = keeper(tmp_path)
    again.read_all()
    assert again.interrupted() == ("sbx_0000000000000001",)
    assert again.recoveries("sbx_0000000000000001") == (1_000.0,)
    begin(again, "ses_3")
    assert again.interrupted() == () and again.recoveries("sbx_0000000000000001") == (1_000.0,)


def test_what_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    """A record that is damaged, or lies in another's place, brings nothing back."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    place = kept.place("sbx_0000000000000001")
    moved = place.with_name("0000000000000009")
    place.rename(moved)
    assert keeper(tmp_path).read_all() == ()
    moved.rename(place)
    (place / RECORD).write_bytes(b'{"sandbox": {')
    assert keeper(tmp_path).read_all() == ()


def test_a_place_that_nothing_was_written_to_goes(tmp_path: Path) -> None:
    """A daemon that died before it wrote down what is kept there kept nothing."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    half = kept.place("sbx_0000000000000009")
    (half / SNAPSHOTS).mkdir(parents=True)
    assert len(keeper(tmp_path).read_all()) == 1
    assert not half.exists()


def test_a_namespace_sandbox_is_not_kept(tmp_path: Path) -> None:
    """It has no memory that could be saved as a whole."""
    wanted = replace(WANTED, choice=replace(CHOICE, backend=Backend.NAMESPACE))
    assert keeper(tmp_path).begin(sandbox(), wanted, people("ses_1"), None) is None


def test_how_it_ended_and_how_often_it_came_back_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    """Or a revoked one would be brought back by itself, and a crash loop begin anew with each restart."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    for at in (1.0, 2.0, 3.0, 4.0):
        kept.recovering("sbx_0000000000000001", at)
    begin(kept, "ses_2")
    ended = replace(
        sandbox(), state=SandboxState.ENDED, ending=Ending.SESSION_OVER, keeping=Durability(recovers=True)
    )
    kept.ended(ended)
    again = keeper(tmp_path)
    (record,) = again.read_all()
    assert record.sandbox == ended
    assert again.recoveries(ended.id) == (2.0, 3.0, 4.0)
    for nobody in ("sbx_0000000000000009",):
        again.recovering(nobody, 1.0)
        again.ended(replace(ended, id=nobody))
        assert again.record(nobody) is None and again.recoveries(nobody) == ()


def test_what_forks_began_from_is_nobodys_after_a_crash(tmp_path: Path) -> None:
    """The callers that asked for them are gone; snapshots and a sleep stay."""
    kept = keeper(tmp_path)
    begin(kept, "ses_1")
    place = kept.place("sbx_0000000000000001")
    for directory in (place / FORKS / "point", place / SNAPSHOTS / "mine", place / ASLEEP):
        save(kept, directory, 1)
    keeper(tmp_path).read_all()
    assert sorted(each.parent.name for each in place.rglob(manifest.NAME)) == [ASLEEP, "mine"]


def test_what_is_held_is_known_while_the_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revocation of everything asks for it, and the ones behind it would wait for that disk, too."""
    kept, asked = keeper(tmp_path), []
    kept.read_all()
    kept.begin(sandbox(), WANTED, people("ses_1"), None)

    def slow(*about: object, **more: object) -> None:
        with ThreadPoolExecutor(1) as other:
            asked.append(other.submit(kept.held).result(30))
        write_atomically(*about, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(keeping, "write_atomically", slow)
    kept.interrupt(sandbox().id)
    assert asked == [frozenset({"ses_1"})]
