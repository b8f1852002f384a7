"""Whole images, from a directory and from an archive; the one from Debian packages is in test_debian."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coatcheck.images import guest_programs, manifest
from coatcheck.images.build import build, remove
from coatcheck.images.cache import FILES, Cache, find
from coatcheck.images.parts import Source
from coatcheck.images.problem import ImageError
from tests.images import filesystem
from tests.images.tars import entry, layout, tar

pytestmark = pytest.mark.needs_debian("mke2fs", "cc")


def silent(_line: str) -> None:
    pass


def test_a_directory_becomes_an_image(cache: Path, root: Path) -> None:
    """Its files, and what every sandbox needs: two users, a resolver, empty directories to mount on."""
    (root / "dev").symlink_to("etc")  # a mount on it would cover /etc
    image = build(cache, "mine", Source(directory=root), silent)
    assert {path.name for path in image.iterdir()} == set(FILES)
    disk = image / "root.ext4"
    filesystem.check(disk)
    assert filesystem.content(disk, "/usr/bin/program") == b"#!/bin/sh\n" * 5000
    assert filesystem.content(disk, "/etc/resolv.conf") == b"nameserver 127.0.0.53\n"
    passwd = filesystem.content(disk, "/etc/passwd").decode().splitlines()
    assert passwd == [
        "root:x:0:0:root:/root:/bin/sh",
        "agent:x:1000:1000::/home/agent:/bin/sh",
        "tool:x:1001:1001::/home/tool:/bin/sh",
    ]
    assert b"agent:*:" in filesystem.content(disk, "/etc/shadow")
    home, temporary, devices = (filesystem.look(disk, path) for path in ("/home/agent", "/tmp", "/dev"))
    assert home is not None and (home.mode, home.uid, home.gid) == (0o700, 1000, 1000)
    assert temporary is not None and temporary.mode == 0o1777
    assert devices is not None and devices.kind == "directory"
    assert find(cache, "mine") == image


def test_a_container_image_says_how_it_is_started(cache: Path, tmp_path: Path) -> None:
    """Its environment stands in the manifest, for the program that is started."""
    layer = tar(entry("bin"), ("bin/sh", b"shell"))
    config = {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/srv"}
    archive = layout(tmp_path / "image.tar", [layer], config)
    image = build(cache, "mine", Source(archive=archive), silent)
    said = manifest.read(image)
    assert (dict(said.environment), said.command, said.working_directory) == (
        {"PATH": "/bin"},
        ("sh",),
        "/srv",
    )
    assert said.kernel_form == "elf" and said.source == str(archive)
    filesystem.check(image / "root.ext4")
    assert filesystem.content(image / "root.ext4", "/bin/sh") == b"shell"


def test_a_second_build_makes_nothing(cache: Path, root: Path) -> None:
    """Not even the time that it was made changes; nothing is told because nothing takes long."""
    told = list[str]()
    first = build(cache, "mine", Source(directory=root), silent)
    before = {path.name: path.stat().st_ino for path in first.iterdir()}
    second = build(cache, "mine", Source(directory=root), told.append)
    assert second == first and told == []
    assert {path.name: path.stat().st_ino for path in second.iterdir()} == before


def test_what_changes_makes_another_image_and_the_old_one_goes(cache: Path, root: Path) -> None:
    """A changed file; nothing of the old image stays, as no name means it any more."""
    first = build(cache, "mine", Source(directory=root), silent)
    (root / "etc/new").write_text("new")
    second = build(cache, "mine", Source(directory=root), silent)
    assert second != first and not first.exists()
    images = Cache(cache)
    assert (len(images.keys("complete")), len(images.keys("roots"))) == (1, 1)
    assert filesystem.content(second / "root.ext4", "/etc/new") == b"new"


def test_another_agent_changes_the_initramfs_alone(
    cache: Path, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The root of hundreds of megabytes is the same file as before."""
    first = build(cache, "mine", Source(directory=root), silent)
    disk = (first / "root.ext4").stat().st_ino
    (tmp_path / "agent").write_bytes(b"another agent")
    monkeypatch.setattr(guest_programs, "agent", lambda _cache: tmp_path / "agent")
    second = build(cache, "mine", Source(directory=root), silent)
    assert second != first and (second / "root.ext4").stat().st_ino == disk
    assert b"another agent" in (second / "initrd").read_bytes()


def test_an_image_goes_with_its_last_name(cache: Path, root: Path) -> None:
    """Two names of one image are one image."""
    image = build(cache, "one", Source(directory=root), silent)
    assert build(cache, "two", Source(directory=root), silent) == image
    remove(cache, "one", silent)
    assert find(cache, "two") == image
    remove(cache, "two", silent)
    images = Cache(cache)
    assert (images.keys("complete"), images.keys("roots"), images.keys("kernels")) == (set(), set(), set())
    with pytest.raises(ImageError, match="no image named `two`"):
        remove(cache, "two", silent)


def _empty(tmp_path: Path) -> Source:
    (tmp_path / "empty").mkdir()
    return Source(directory=tmp_path / "empty")


def _device(tmp_path: Path) -> Source:
    layer = tar(entry("bin"), ("bin/sh", b""), entry("disk", b"4", devmajor=8))
    return Source(archive=layout(tmp_path / "image.tar", [layer]))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda _: Source(directory=Path("/nowhere")), "cannot be read"),
        (lambda _: Source(archive=Path("/nowhere")), "cannot be read"),
        (_empty, "it has no programs"),
        (_device, "is a device"),
        (lambda _: Source(packages=("no such package",)), "is not a package name"),
    ],
)
def test_a_bad_source_leaves_nothing(
    cache: Path, tmp_path: Path, source: Callable[[Path], Source], words: str
) -> None:
    """A clear error; no half image, and none by that name."""
    with pytest.raises(ImageError, match=words) as raised:
        build(cache, "mine", source(tmp_path), silent)
    assert raised.value.hint
    images = Cache(cache)
    assert (images.names(), images.keys("complete"), images.keys("roots")) == ({}, set(), set())
    assert not list(images.where.rglob("*unfinished*"))


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A launcher of now does not guess what an image of tomorrow means."""
    for text in ("[]", "{}", "not json", '{"command": []}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ImageError, match="is not an image manifest"):
            manifest.read(tmp_path)
    with pytest.raises(ImageError, match="cannot be read"):
        manifest.read(tmp_path / "nowhere")
