"""Memory of real processes: what is planted in one is found, wherever it stands."""

import os
import signal
from pathlib import Path

import pytest

from coatcheck.inspection.processes import descendants, ran, search_memory, search_nameless_files
from tests.inspection.planted import SECRET, findings, planted, region, scan_of, until


@pytest.mark.parametrize("where", ["whole", "protected"])
def test_a_secret_in_memory_is_found(where: str) -> None:
    """Also on a page that the process itself may not read."""
    with planted(where) as pid:
        scan, told = scan_of()
        searched = region()
        search_memory(scan, searched, pid)
    hits = findings(told)
    assert {"full"} == {hit["kind"] for hit in hits} and hits[0]["item"] == f"process {pid}"
    assert searched.unread == {} and 1_000_000 < searched.read <= searched.size
    assert SECRET not in repr(told)


def test_a_secret_whose_halves_stand_on_two_pages_is_found() -> None:
    """The first page's end and the third one's start; nowhere does it stand whole."""
    with planted("pages") as pid:
        scan, told = scan_of()
        search_memory(scan, region(), pid)
    hits = findings(told)
    assert [hit["kind"] for hit in hits] == ["page-edge", "page-edge"]
    first, second = sorted(hit["offset"] for hit in hits)
    assert (first + 24) % 4096 == 0 and second % 4096 == 0


def test_a_secret_in_the_environment_is_found() -> None:
    """It stands at the end of the stack."""
    with planted("nothing", env={"OPENAI_API_KEY": SECRET}) as pid:
        scan, told = scan_of()
        search_memory(scan, region(), pid)
    assert findings(told)


def test_a_process_without_it_has_no_finding() -> None:
    """Python with its own libraries, and nothing of ours."""
    with planted("nothing") as pid:
        scan, told = scan_of()
        searched = region()
        search_memory(scan, searched, pid)
    assert findings(told) == [] and searched.unread == {} and searched.items == 1


@pytest.mark.parametrize("where", ["memfd", "deleted"])
def test_open_files_without_a_name_are_searched(where: str, tmp_path: Path) -> None:
    """In no directory, and in nobody's memory."""
    with planted(where, str(tmp_path / "gone")) as pid:
        scan, told = scan_of()
        searched, known = region(), set[tuple[int, int]]()
        search_nameless_files(scan, searched, pid, known)
        search_nameless_files(scan, searched, pid, known)
    (hit,) = findings(told)
    assert hit["offset"] == 0 and hit["item"].startswith(f"process {pid}, open file ")


def test_an_attribute_of_a_file_without_a_name_is_found(tmp_path: Path) -> None:
    """The file itself is empty."""
    with (tmp_path / "file").open("wb") as file:
        os.setxattr(file.fileno(), "user.x", SECRET.encode())
        (tmp_path / "file").unlink()
        file_number = file.fileno()
        scan, told = scan_of()
        search_nameless_files(scan, region(), os.getpid(), set())
    assert [hit["item"] for hit in findings(told)] == [f"process {os.getpid()}, open file {file_number}"]


def test_descendants_are_all_that_it_started_and_that_live() -> None:
    """A grandchild is one; a child that ended and was not collected is none."""
    with planted("child") as pid:
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        assert sorted(descendants(pid)) == sorted([pid, *children]) and len(children) == 1
        os.kill(pid, signal.SIGSTOP)  # so that it does not collect its child
        os.kill(children[0], signal.SIGKILL)
        until(lambda: descendants(pid) == [pid])
    assert descendants(pid) == []


def test_whoever_runs_is_noticed() -> None:
    """A stopped process is given no processor; one that ran was."""
    with planted("nothing") as pid:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text())
        before = ran(pid)
        scan, _ = scan_of()
        search_memory(scan, region(), pid)
        assert ran(pid) == before
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: ran(pid) > before)


def test_a_process_that_is_gone_is_said_to_be_unread() -> None:
    """Nothing found in what nobody looked at is no proof."""
    with planted("nothing") as pid:
        pass
    scan, _ = scan_of()
    searched = region()
    search_memory(scan, searched, pid)
    search_nameless_files(scan, searched, pid, set())
    assert sum(searched.unread.values()) == 2
