"""The searching process: what it is told and tells, and that it dies."""

import asyncio
import os
from pathlib import Path

import pytest

from coatcheck.inspection.residue import Value
from coatcheck.inspection.scan_targets import Place, PlaceKind
from coatcheck.inspection.scanner import Found, ScanFailed, Scanned, Scanner
from tests.inspection.planted import SECRET, VALUE, planted, sparse


def place(path: Path, kind: PlaceKind = PlaceKind.DISK) -> Place:
    return Place(path.name, kind, str(path), None)


async def scan(*places: Place, values: tuple[Value, ...] = (VALUE,)) -> Scanned:
    async with Scanner(values) as scanner:
        return await scanner.scan(places, lambda _: None)


async def test_a_process_and_a_disk_are_searched(tmp_path: Path) -> None:
    """In one go; each place has its line, and each finding says where."""
    disk = sparse(tmp_path / "overlay", 8 << 20, (5 << 20, SECRET.encode()))
    with planted("pages") as pid:
        scanned = await scan(Place("processes", PlaceKind.PROCESS, None, pid), place(disk))
    assert {(f.region, f.kind) for f in scanned.findings} == {("processes", "page-edge"), ("overlay", "full")}
    assert Found("openai", "overlay", "", 5 << 20, "full", "plain") in scanned.findings
    assert [(r.name, r.kind) for r in scanned.regions] == [("overlay", "disk"), ("processes", "process")]
    assert scanned.total == 3 and all(region.searched for region in scanned.regions)
    assert scanned.regions[0].bytes == 8 << 20


async def test_a_directory_is_searched(tmp_path: Path) -> None:
    """As the namespace backend's files are."""
    (tmp_path / "notes").write_text(SECRET)
    scanned = await scan(place(tmp_path, PlaceKind.FILE))
    assert [found.item for found in scanned.findings] == [f"inode {(tmp_path / 'notes').stat().st_ino}"]


async def test_a_process_that_runs_meanwhile_is_told(tmp_path: Path) -> None:
    """It could carry a secret from where the search has not been to where it has: nothing is proven."""
    with planted("nothing") as pid:
        busy = await asyncio.create_subprocess_exec("sh", "-c", "while :; do sleep 0.001; done")
        try:
            (still,) = (await scan(Place("p", PlaceKind.PROCESS, None, pid))).regions
            (ran,) = (await scan(Place("p", PlaceKind.PROCESS, None, busy.pid))).regions
        finally:
            busy.kill()
            await busy.wait()
    assert "a process ran while it was searched" in ran.unread
    assert "a process ran while it was searched" not in still.unread


async def test_what_a_process_can_write_is_searched_through_it(tmp_path: Path) -> None:
    """A tmpfs of its own mount namespace, which stands in no place of ours."""
    program = f"mount -t tmpfs none {tmp_path} && head -c 48 > {tmp_path}/x && echo ok && exec sleep 60"
    process = await asyncio.create_subprocess_exec(
        "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", program,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(SECRET.encode())
        assert await process.stdout.readline() == b"ok\n"
        scanned = await scan(Place("p", PlaceKind.PROCESS, None, process.pid))
    finally:
        process.kill()
        await process.wait()
    assert not (tmp_path / "x").exists()
    assert any(found.item.startswith("inode ") for found in scanned.findings)
    # It has the host's own disk before it, too: that is no sandbox, and is not called one.
    assert any("file system of the host can be written" in why for why in scanned.regions[0].unread)


async def test_nothing_of_a_secret_is_in_the_childs_arguments_or_environment() -> None:
    """It comes on standard input; nobody of the same user can read its memory."""
    async with Scanner([VALUE]) as scanner:
        assert scanner.process is not None
        about = Path(f"/proc/{scanner.process.pid}")
        shown = (about / "cmdline").read_bytes()
        assert SECRET.encode() not in shown and b"coatcheck.inspection" in shown
        assert os.stat(about / "environ").st_uid == 0  # not dumpable: even its own user's files are root's
    assert SECRET not in repr(scanner.__dict__)


async def test_it_is_killed_on_the_way_out(tmp_path: Path) -> None:
    """Cancelled in the middle of a search, or done: no process is left."""
    endless = place(Path("/usr/share"), PlaceKind.FILE)
    async with Scanner([VALUE]) as scanner:
        assert scanner.process is not None
        pid = scanner.process.pid
        searching = asyncio.create_task(scanner.scan([endless] * 50, lambda _: None))
        await asyncio.sleep(0.05)
        searching.cancel()
        await asyncio.wait([searching])
    assert not Path(f"/proc/{pid}").exists()


async def test_a_child_that_ends_is_a_failed_search(tmp_path: Path) -> None:
    """Not one that found nothing."""
    async with Scanner([VALUE]) as scanner:
        assert scanner.process is not None
        scanner.process.kill()
        with pytest.raises(ScanFailed):
            await scanner.scan([place(sparse(tmp_path / "f", 1))], lambda _: None)


async def test_progress_is_heard(tmp_path: Path) -> None:
    """Of a search that takes longer than a fraction of a second."""
    heard: list[int] = []
    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * 80)
    async with Scanner([VALUE]) as scanner:
        scanned = await scanner.scan([place(big), place(big)], heard.append)
    assert heard == sorted(heard) and all(n <= 160 << 20 for n in heard)
    assert sum(region.searched for region in scanned.regions) == 160 << 20
