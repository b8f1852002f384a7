"""Files and other regions: without their holes, in bounded memory, and what cannot be read is told."""

import errno
import os
from pathlib import Path

from coatcheck.inspection.region import BLOCK, MOST_FINDINGS, Region
from coatcheck.inspection.residue import CHUNK, PAGE
from tests.inspection.planted import SECRET, findings, region, scan_of, sparse

RAW = SECRET.encode()


def search(path: Path, page: int = PAGE) -> tuple[Region, list[dict[str, object]]]:
    scan, told = scan_of()
    searched = region()
    fd = os.open(path, os.O_RDONLY)
    try:
        scan.file(searched, fd, page=page)
    finally:
        os.close(fd)
    return searched, findings(told)


def test_a_big_file_with_holes_is_read_where_it_has_data(tmp_path: Path) -> None:
    """64 GiB, three pages of which exist: the secret is found behind its hole, in no time."""
    far = 60 << 30
    path = sparse(tmp_path / "ram", 64 << 30, (0, b"x"), (far + 100, RAW), (far + (1 << 30), b"x"))
    searched, hits = search(path)
    assert [hit["offset"] for hit in hits] == [far + 100]
    assert searched.size == 64 << 30 and searched.read <= 4 * 65536


def test_a_secret_between_two_reads_is_found(tmp_path: Path) -> None:
    """Chunks of a file share what a secret could need."""
    path = tmp_path / "disk"
    path.write_bytes(b"\xff" * (2 * CHUNK - 7) + RAW + b"\xff" * 100)
    searched, hits = search(path)
    assert [(hit["offset"], hit["kind"]) for hit in hits] == [(2 * CHUNK - 7, "full")]
    assert searched.read == searched.size == 2 * CHUNK - 7 + len(RAW) + 100


def test_a_disk_is_looked_at_by_its_smallest_blocks(tmp_path: Path) -> None:
    """Of an ext4 with blocks of 1 KiB, a file's blocks may be anywhere."""
    path = sparse(tmp_path / "overlay", 1 << 20, (5 * 1024 - 20, RAW[:20]), (99 * 1024, RAW[20:]))
    assert search(path)[1] == []
    assert [hit["offset"] for hit in search(path, BLOCK)[1]] == [5 * 1024 - 20, 99 * 1024]


def test_pages_that_cannot_be_read_are_told_and_the_others_searched() -> None:
    """A page of a device, say, in the middle of a process' memory."""
    data = bytearray(5 * PAGE)
    data[4 * PAGE + 9 : 4 * PAGE + 9 + len(RAW)] = RAW

    def read(view: memoryview, at: int) -> int:
        if PAGE <= at < 3 * PAGE:
            raise OSError(errno.EIO, "no")
        end = min(at + len(view), PAGE if at < PAGE else 5 * PAGE)
        view[: end - at] = data[at:end]
        return end - at

    scan, told = scan_of()
    searched = region()
    scan.runs(searched, read, [(0, 5 * PAGE)])
    assert [hit["offset"] for hit in findings(told)] == [4 * PAGE + 9]
    assert searched.unread == {"a page cannot be read (EIO)": 2} and searched.read == 3 * PAGE


def test_a_file_that_got_shorter_ends_the_search_of_it(tmp_path: Path) -> None:
    """What is gone cannot be read for ever."""
    path = sparse(tmp_path / "f", 10 * PAGE, (0, b"x" * 10 * PAGE))
    scan, _ = scan_of()
    searched = region()
    fd = os.open(path, os.O_RDONLY)
    scan.runs(searched, lambda view, at: os.preadv(fd, [view], at), [(0, 100 * PAGE)])
    os.close(fd)
    assert searched.read == 10 * PAGE


def test_a_flood_of_findings_is_counted_and_the_first_ones_told() -> None:
    """A guest full of copies fills no statement."""
    scan, told = scan_of()
    scan.bytes(region(), (RAW + b"\0" * 4) * (40 * PAGE // 4), item="")
    assert len(findings(told)) <= MOST_FINDINGS < 40 * PAGE
    assert scan.findings >= len(findings(told)) > 50


def test_progress_is_told(tmp_path: Path) -> None:
    """In bytes, a few times a second."""
    path = tmp_path / "f"
    path.write_bytes(b"\xaa" * 3 * CHUNK)
    now = iter(range(100))
    from coatcheck.inspection.region import Scan
    from coatcheck.inspection.residue import Residues

    told: list[dict[str, object]] = []
    scan = Scan(Residues(()), told.append, clock=lambda: float(next(now)))
    fd = os.open(path, os.O_RDONLY)
    scan.file(region(), fd)
    os.close(fd)
    assert [each["progress"] for each in told] == [CHUNK, 2 * CHUNK, 3 * CHUNK]
