"""The snapshots of one sandbox: counted, named, removed only when a caller asks for that."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.durable.snapshots.directory import FILES, Unfinished
from coatcheck.durable.snapshots.manifest import NAME, SnapshotError
from coatcheck.durable.snapshots.store import Store
from tests.durable.snapshots.test_manifest import HERE, KEY, MANIFEST


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "snapshots").mkdir(mode=0o700)
    return Store(tmp_path / "snapshots", limit=3)


def take(store: Store, name: str, created_at: float) -> None:
    files = Unfinished(store.place(name, KEY), 1)
    files.begin()
    for file in FILES:
        os.close(files.create(file))
    files.finish(replace(MANIFEST.origin, created_at=created_at), 1, HERE, KEY)


def names(store: Store) -> list[str]:
    return [entry.name for entry in store.list(KEY)]


def test_there_are_none_before_the_first(tmp_path: Path) -> None:
    """Not even a directory."""
    assert Store(tmp_path / "snapshots").list(KEY) == ()
    Store(tmp_path / "snapshots").sweep()


def test_the_oldest_comes_first(store: Store) -> None:
    """Whatever it is called; one that cannot be read comes last and is still there to be removed."""
    take(store, "a", 30.0)
    take(store, "b", 10.0)
    take(store, "c", 20.0)
    assert names(store) == ["b", "c", "a"]
    (store.directory / "b" / NAME).write_text("{}")
    assert names(store) == ["c", "a", "b"]
    assert store.list(KEY)[-1].manifest is None
    store.remove("b")
    assert names(store) == ["c", "a"]


def test_one_more_than_may_be_is_refused_and_none_is_lost(store: Store) -> None:
    """The refusal names those that could go."""
    for number, name in enumerate(("x", "y", "z")):
        take(store, name, float(number))
    with pytest.raises(SnapshotError, match="has 3 snapshots, and may have 3") as caught:
        store.place("w", KEY)
    assert caught.value.hint == "remove one that is not needed; the oldest are x, y, z"
    assert names(store) == ["x", "y", "z"]
    store.remove("x")
    assert store.place("w", KEY) == store.directory / "w"


def test_one_that_is_to_be_replaced_does_not_count(store: Store) -> None:
    """It is there until the other one is; one that is not there makes no room."""
    for number, name in enumerate(("x", "y", "z")):
        take(store, name, float(number))
    assert store.place("w", KEY, replaces="y") == store.directory / "w"
    assert names(store) == ["x", "y", "z"]
    with pytest.raises(SnapshotError, match="has 3 snapshots, and may have 3"):
        store.place("w", KEY, replaces="v")


def test_where_fewer_may_be_by_now_one_takes_the_place_of_another(store: Store) -> None:
    """The operator lowered the limit: there are no more than before, and periodic ones go on."""
    for number, name in enumerate(("x", "y", "z")):
        take(store, name, float(number))
    lower = Store(store.directory, limit=1)
    assert lower.place("w", KEY, replaces="x") == store.directory / "w"
    for replaces in (None, "v"):
        with pytest.raises(SnapshotError, match="has 3 snapshots, and may have 1"):
            lower.place("w", KEY, replaces)


def test_a_name_that_is_taken_is_refused(store: Store) -> None:
    """Before its guest is stopped for it."""
    take(store, "x", 1.0)
    with pytest.raises(SnapshotError, match="there is a snapshot x already"):
        store.place("x", KEY)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "A", "x" * 65, "a\n", "ä"])
def test_a_name_is_no_path(store: Store, name: str) -> None:
    """It comes from a caller."""
    for attempt in (lambda: store.place(name, KEY), lambda: store.find(name), lambda: store.remove(name)):
        with pytest.raises(SnapshotError, match="not a snapshot name"):
            attempt()


def test_one_that_is_not_there_is_said(store: Store) -> None:
    """With those that are."""
    with pytest.raises(SnapshotError, match="there is no snapshot y") as caught:
        store.find("y")
    assert caught.value.hint == "take one: coatcheck sandbox snapshot"
    take(store, "x", 1.0)
    with pytest.raises(SnapshotError) as caught:
        store.remove("y")
    assert caught.value.hint == "there are: x"
    assert store.find("x") == store.directory / "x"


def test_what_a_crash_left_is_no_snapshot_and_is_swept(store: Store) -> None:
    """Half written, or half removed."""
    take(store, "x", 1.0)
    files = Unfinished(store.place("y", KEY), 1)
    files.begin()
    os.close(files.create("memory"))
    (store.directory / ".unfinished-removed-z").mkdir()
    assert names(store) == ["x"]
    store.sweep()
    assert [path.name for path in store.directory.iterdir()] == ["x"]
