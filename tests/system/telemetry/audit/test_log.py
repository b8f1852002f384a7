"""The audit log survives what kills daemons and fills disks, and refuses when it cannot write."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.telemetry.audit import file as audit_file
from coatcheck.telemetry.audit.log import AuditLog, AuditUnavailable
from coatcheck.telemetry.audit.verify import verify
from coatcheck.telemetry.events import DaemonEvent
from tests.telemetry.samples import COMPLETION, DECISION, OPENED, Written, numbered

HERE = """
import sys
from pathlib import Path
from coatcheck.telemetry.audit.log import AuditLog, AuditUnavailable
from tests.telemetry.samples import numbered
path = Path(sys.argv[1])
"""


def child(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[4]
    return subprocess.Popen(
        [sys.executable, "-c", HERE + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_many(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.write(numbered(number))


def wait_for(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("after", [1, 700])
def test_kill_9_loses_nothing_that_was_written(tmp_path: Path, after: int) -> None:
    """Every record whose write() had returned before SIGKILL is in the file, in one valid chain."""
    path = tmp_path / "audit" / "audit.jsonl"
    writer = child(
        """
log = AuditLog(path)
number = 0
while True:
    log.write(numbered(number))
    print(number, flush=True)
    number += 1
""",
        path,
    )
    assert writer.stdout is not None
    try:
        told = [int(writer.stdout.readline()) for _ in range(after)]
    finally:
        writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    told += [int(line) for line in rest.split("\n")[:-1]]
    AuditLog(path).close()  # recovers a torn line, if the kill left one
    written = {record["request_id"] for record in records(path) if record["type"] == "decision"}
    assert len(told) >= after and {f"r{number}" for number in told} <= written
    assert verify(path).ok


def test_a_torn_last_line_is_moved_into_a_record(tmp_path: Path) -> None:
    """The next start cuts half a record off, keeps its bytes, and the chain goes on."""
    written = Written(tmp_path, records=3)
    torn = written.lines()[-1][:70]
    with written.path.open("ab") as file:
        file.write(torn)
    log = written.open()
    log.close()
    assert log.recovery.torn_bytes == 70 and log.recovery.missing == 0
    recovered = [record for record in records(written.path) if record.get("what") == "recovered"]
    assert [(record["torn_bytes"], record["torn"]) for record in recovered] == [(70, torn.decode())]
    assert verify(written.path, written.key, written.checkpoints).ok


def test_a_file_torn_in_its_first_record_begins_anew(tmp_path: Path) -> None:
    """A crash in the very first write leaves a log that still starts."""
    path = tmp_path / "audit" / "audit.jsonl"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b'{"seq":1,"pre')
    AuditLog(path).close()
    assert verify(path).ok and records(path)[0]["what"] == "recovered"


def test_a_crash_inside_a_rotation_keeps_the_chain(tmp_path: Path) -> None:
    """The full file is renamed and the new one is not there yet: the chain's end is found all the same."""
    written = Written(tmp_path, records=5)
    written.path.rename(audit_file.rotated_name(written.path, 1))
    written.append(5)
    report = verify(written.path, written.key, written.checkpoints)
    assert report.ok and report.files == 2 and report.types["decision"] == 10


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """ENOSPC on a real, tiny file system: AuditUnavailable, no half record, and a word about the gap."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root; the next test fills a file without")
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", mount], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this container may not mount; the next test fills a file without")
    try:
        path = mount / "audit" / "audit.jsonl"
        log = AuditLog(path)
        with pytest.raises(AuditUnavailable, match=r"[Nn]o space left"):
            write_many(log, 1000)
        assert verify(path).ok and not verify(path).findings, "no half record stands in the file"
        with pytest.raises(AuditUnavailable):
            log.write(DECISION)
        subprocess.run(["mount", "-o", "remount,size=1m", mount], check=True)
        log.write(DECISION)
        log.close()
        resumed = [record for record in records(path) if record.get("what") == "resumed"]
        assert sum(int(str(record["lost"])) for record in resumed) == 2
        assert verify(path).ok
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_a_log_that_failed_is_tried_again_by_itself(tmp_path: Path) -> None:
    """Who takes us out of service until we are ready again sends nothing that would try it."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path, flush_seconds=0.01)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        with pytest.raises(AuditUnavailable):
            log.write(DECISION)
        assert log.failing == "1 records could not be written" and not log.broken
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    end = time.monotonic() + 30
    while log.failing and time.monotonic() < end:
        time.sleep(0.01)
    assert not log.failing
    log.close()
    assert [record["lost"] for record in records(path) if record.get("what") == "resumed"] == [1]


def test_a_file_at_its_size_limit_refuses(tmp_path: Path) -> None:
    """A short write (RLIMIT_FSIZE) is taken back and refused, as on a full disk."""
    path = tmp_path / "audit" / "audit.jsonl"
    writer = child(
        """
import resource
log = AuditLog(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    for number in range(1000):
        log.write(numbered(number))
except AuditUnavailable as refused:
    print("refused", number, refused)
""",
        path,
    )
    out, _ = writer.communicate(timeout=60)
    assert out.startswith("refused")
    report = verify(path)
    assert report.ok and not report.findings and report.types["decision"] == int(out.split()[1])


def test_two_daemons_never_share_a_log(tmp_path: Path) -> None:
    """The second one is refused with a reason; after the first has gone the log is free."""
    path = tmp_path / "audit" / "audit.jsonl"
    first = AuditLog(path)
    with pytest.raises(AuditUnavailable, match="already runs here"):
        AuditLog(path)
    first.close()
    AuditLog(path).close()


def test_the_file_is_ours_alone(tmp_path: Path) -> None:
    """0600 in 0700, whatever the umask; an open directory or a link in the file's place is refused."""
    before = os.umask(0)
    try:
        AuditLog(tmp_path / "audit" / "audit.jsonl").close()
    finally:
        os.umask(before)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "audit" / "audit.jsonl").stat().st_mode & 0o777 == 0o600
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(AuditUnavailable, match="0700"):
        AuditLog(tmp_path / "open" / "audit.jsonl")
    (tmp_path / "audit" / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditUnavailable):
        AuditLog(tmp_path / "audit" / "link.jsonl")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("change", ["truncated", "removed", "appended to"])
def test_a_file_changed_beneath_us_stops_everything(tmp_path: Path, change: str) -> None:
    """logrotate, rm or another writer: within a flush the log refuses, until somebody has looked."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path, flush_seconds=0.005)
    log.write(DECISION)
    if change == "truncated":
        os.truncate(path, 100)
    elif change == "removed":
        path.unlink()
    else:
        with path.open("ab") as file:
            file.write(b"{}\n")
    wait_for(lambda: log.broken)
    with pytest.raises(AuditUnavailable, match="changed or removed"):
        log.write(DECISION)
    log.close()


def test_an_unreadable_log_is_not_continued(tmp_path: Path) -> None:
    """What is not ours to judge is left as it is: the daemon does not start, and says what to do."""
    path = tmp_path / "audit" / "audit.jsonl"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"something else\n")
    with pytest.raises(AuditUnavailable, match="audit verify"):
        AuditLog(path)
    assert path.read_bytes() == b"something else\n"


def test_threads_share_one_chain(tmp_path: Path) -> None:
    """The plane's and the control API's threads write at once; rotation runs beside them."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path, flush_seconds=0.002, max_bytes=50_000)
    threads = [threading.Thread(target=write_many, args=(log, 500)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.counts["decision"] == 2000
    log.close()
    report = verify(path)
    assert report.ok and report.types["decision"] == 2000


def test_the_state_version_is_found_again_across_restart_and_rotation(tmp_path: Path) -> None:
    """A state directory that is behind the audit log can be told: the log remembers the greatest version."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path, flush_seconds=0.005, max_bytes=700)
    for version in (41, 42, 7):
        log.write(replace(OPENED, state_version=version))
    wait_for(lambda: len(audit_file.log_files(path)) > 1)
    assert log.last_state_version() == 42
    log.close()
    assert b'"change"' not in path.read_bytes(), "the sessions' records are in the full file"
    again = AuditLog(path)
    assert again.last_state_version() == 42
    again.close()


def test_a_sandbox_cannot_forge_a_state_version(tmp_path: Path) -> None:
    """A path that spells the key is text inside a record, and counts for nothing."""
    path = tmp_path / "audit" / "audit.jsonl"
    log = AuditLog(path)
    log.write(replace(DECISION, path='/x","state_version":999,"y":"'))
    log.close()
    again = AuditLog(path)
    assert again.last_state_version() == 0
    again.close()


def test_checkpoints_reach_a_callable_even_when_it_fails_first(tmp_path: Path) -> None:
    """A second sink that raises or stalls is counted and harms nothing; later checkpoints reach it."""
    got: list[bytes] = []

    def sink(line: bytes) -> None:
        if not got and len(failures) < 1:
            failures.append(1)
            raise OSError("syslog is not there yet")
        got.append(line)

    failures: list[int] = []
    written = Written(tmp_path, records=0)
    log = AuditLog(
        tmp_path / "other" / "audit.jsonl",
        signer=written.signer,
        second_sink=sink,
        flush_seconds=0.005,
        checkpoint_seconds=0.01,
    )
    log.write(DECISION)
    wait_for(lambda: got)
    log.close()
    assert log.second_sink_failures == 1
    assert set(got) <= set((tmp_path / "other" / "audit.jsonl").read_bytes().splitlines(keepends=True))


def test_a_stalled_second_sink_does_not_hold_up_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync goes on while syslog hangs."""
    hang = threading.Event()

    def syslog(line: bytes) -> None:
        hang.wait(30)

    written = Written(tmp_path, records=0)
    log = AuditLog(
        tmp_path / "other" / "audit.jsonl",
        signer=written.signer,
        second_sink=syslog,
        flush_seconds=0.005,
        checkpoint_records=1,
    )
    flushed = 0

    def fdatasync(fd: int) -> None:
        nonlocal flushed
        real(fd)
        flushed += 1

    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    for _ in range(5):
        before = flushed
        log.write(DECISION)
        wait_for(lambda before=before: flushed > before)
    hang.set()
    log.close()


def test_counts_are_records(tmp_path: Path) -> None:
    """What the bench compares with requests is what stands in the file."""
    log = AuditLog(tmp_path / "audit" / "audit.jsonl")
    for event in (DECISION, COMPLETION, DECISION, DaemonEvent(1.0, "ready")):
        log.write(event)
    log.close()
    assert log.counts == {"log": 1, "decision": 2, "completion": 1, "daemon": 1}


def test_what_is_no_event_is_refused(tmp_path: Path) -> None:
    """A value that the record cannot hold refuses the request, like a full disk."""
    log = AuditLog(tmp_path / "audit" / "audit.jsonl")
    for wrong in (replace(DECISION, session=None), replace(DECISION, outcome="maybe"), object()):  # type: ignore[arg-type]
        with pytest.raises(AuditUnavailable, match="cannot be written"):
            log.write(wrong)  # type: ignore[arg-type]
    log.write(DECISION)
    log.close()
    assert verify(tmp_path / "audit" / "audit.jsonl").ok


def test_a_disk_that_fails_to_flush_refuses_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After EIO from fsync the kernel forgets what it lost: writing ends."""

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log = AuditLog(tmp_path / "audit" / "audit.jsonl", flush_seconds=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        log.write(DECISION)
        wait_for(lambda: "Input/output error" in log.broken)
    with pytest.raises(AuditUnavailable, match="restart"):
        log.write(DECISION)
    log.close()


def test_a_checkpoint_leaves_only_after_its_records_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut would look like a truncation."""
    seen: list[str] = []
    real = os.fdatasync

    def watched(fd: int) -> None:
        seen.append("disk")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    signer = Written(tmp_path, records=0).signer
    seen.clear()
    log = AuditLog(
        tmp_path / "other" / "audit.jsonl", signer=signer, second_sink=lambda _: seen.append("elsewhere")
    )
    log.write(DECISION)
    log.close()
    # On a busy machine the group's flush may come before the close, which then has nothing left to flush.
    assert "elsewhere" in seen[seen.index("disk") :] and seen[:2] != ["elsewhere"] * 2
