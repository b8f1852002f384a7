"""The newc archive, read by the format's own words; that the kernel reads it, too, shows in each boot."""

import stat

from coatcheck.images.initramfs import initramfs

MODULES = (("b.ko", b"second in the alphabet"), ("a.ko", b"x" * 4097))


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Name to (mode, content), read as the kernel's init/initramfs.c does."""
    found, at = dict[str, tuple[int, bytes]](), 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        name_at = at + 110
        name = archive[name_at : name_at + fields[11] - 1].decode()
        content_at = (name_at + fields[11] + 3) // 4 * 4
        if name == "TRAILER!!!":
            assert (content_at + 3) // 4 * 4 == len(archive)
            return found
        found[name] = (fields[1], archive[content_at : content_at + fields[6]])
        at = (content_at + fields[6] + 3) // 4 * 4


def test_it_holds_what_init_looks_for() -> None:
    """Programs that can be started, a console from the first moment, and the order in which modules load."""
    found = entries(initramfs(b"init", b"agent!", MODULES))
    assert found["init"] == (stat.S_IFREG | 0o755, b"init")
    assert found["agent"] == (stat.S_IFREG | 0o755, b"agent!")
    assert stat.S_ISCHR(found["dev/console"][0])
    assert found["modules/load"][1] == b"b.ko\na.ko\n"
    assert found["modules/a.ko"][1] == b"x" * 4097


def test_the_same_content_is_the_same_archive() -> None:
    """No time, no inode number and no owner of this machine is in it."""
    assert initramfs(b"init", b"agent", MODULES) == initramfs(b"init", b"agent", MODULES)
