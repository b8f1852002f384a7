"""A machine goes on only where nothing that it relies on is another: each difference, and what is said."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coatcheck.containers import jail
from coatcheck.decision.session import Isolation
from coatcheck.durable.snapshots import surroundings
from coatcheck.durable.snapshots.manifest import SnapshotError, Surroundings
from coatcheck.sandbox.machine import MachineSpec
from coatcheck.sandbox.resources import Resources
from tests.durable.snapshots.test_manifest import HERE


@pytest.fixture
def image(tmp_path: Path) -> Path:
    place = tmp_path / "image"
    place.mkdir()
    for name in ("vmlinuz", "initrd", "root.ext4"):
        (place / name).write_text(name)
    return place


@pytest.fixture
def found(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    qemu = tmp_path / "qemu"
    qemu.write_text("qemu")
    monkeypatch.setattr(surroundings, "find_qemu", lambda: qemu)
    spec = MachineSpec(Isolation.EMULATED, image, Resources(192, 1, 64, 64))

    def look() -> Surroundings:
        return surroundings.around(spec, image, tmp_path / "digests", "7.2.22", 2_793_438)

    return look


def test_the_same_is_accepted() -> None:
    """Another clock's measurement of the same clock, too."""
    surroundings.check(HERE, HERE)
    surroundings.check(HERE, replace(HERE, tsc_khz=2_793_500, qemu_version=""))


DIFFERENT: dict[str, tuple[Any, str]] = {
    "isolation": (Isolation.HARDWARE, "isolated as emulated, and this machine gives hardware"),
    "memory_mib": (256, "it had 192 MiB of memory, not 256"),
    "cpus": (2, "it had 1 CPUs, not 2"),
    "disk_mib": (128, "it had 64 MiB of disk, not 128"),
    "volumes": (1, "it had 0 volumes, not 1"),
    "balloon": (True, "it could be resized while it ran, and this machine could not"),
    "qemu": ("ff" * 32, r"saved by another QEMU \(7.2.22\)"),
    "kernel": ("ff" * 32, "the vmlinuz differs"),
    "initrd": ("ff" * 32, "the initrd differs"),
    "root": ("ff" * 32, "the root.ext4 differs"),
    "processor": ("Another CPU", "saved on another CPU"),
    "tsc_khz": (2_800_000, "it would run wrong"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_difference_is_refused_with_what_to_do(name: str) -> None:
    """A device's state of another build is read as something else: best case, it crashes."""
    value, said = DIFFERENT[name]
    here: Surroundings = replace(HERE, **{name: value})
    with pytest.raises(SnapshotError, match=said) as caught:
        surroundings.check(HERE, here)
    assert caught.value.hint


def test_nothing_of_a_machine_is_forgotten() -> None:
    """A field that nobody compares would be a difference that nobody sees; the version is for people."""
    fields = {name for name in Surroundings.__dataclass_fields__ if name != "qemu_version"}
    assert fields == DIFFERENT.keys()


def test_files_are_known_by_their_content(found: Any, image: Path, tmp_path: Path) -> None:
    """Also when a change keeps name, size and times, as somebody would who wants to hide it."""
    before = found()
    assert found() == before
    root = image / "root.ext4"
    about = root.stat()
    root.write_text("root.EXT4")
    os.utime(root, ns=(about.st_atime_ns, about.st_mtime_ns))
    after = found()
    assert after == replace(before, root=after.root)
    assert after.root != before.root


def test_digests_are_read_once(found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root has hundreds of MB; a start must not wait for them."""
    before = found()

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("hashlib.file_digest", never)
    assert found() == before


def test_what_was_remembered_may_be_lost(found: Any, tmp_path: Path) -> None:
    """Or be nonsense: then it is read again."""
    before = found()
    (tmp_path / "digests").write_text("{")
    assert found() == before


def test_a_file_that_is_gone_is_said(found: Any, image: Path) -> None:
    """With its path."""
    (image / "initrd").unlink()
    with pytest.raises(SnapshotError, match=r"image/initrd cannot be read"):
        found()


@pytest.mark.needs_debian("qemu-system-x86_64")
def test_a_guest_that_has_the_hosts_cpu_is_bound_to_it(image: Path, tmp_path: Path) -> None:
    """Its programs looked once what the CPU can do."""
    spec = MachineSpec(Isolation.HARDWARE, image, Resources(192, 1, 64, 64))
    about = surroundings.around(spec, image, tmp_path / "digests", "", None)
    assert about.processor
    assert len(about.qemu) == 64
    assert jail.find_qemu().name.startswith("qemu-system")
