"""`coatcheck audit …` on real logs."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.telemetry.audit.checkpoint import CheckpointSigner
from coatcheck.telemetry.audit.log import AuditLog
from coatcheck.telemetry.events import Alarm, DaemonEvent
from tests.cli.transcript import COATCHECK, coatcheck, environment


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log of twelve events, signed, where a daemon with state directory `state` keeps it."""
    directory = tmp_path / "state/audit"
    directory.mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    path = directory / "audit.jsonl"
    signer = CheckpointSigner.load_or_create(directory.parent / "checkpoint-key.pem")
    audit = AuditLog(path, signer=signer, second_sink=tmp_path / "elsewhere.jsonl")
    for number in range(10):
        audit.write(DaemonEvent(1000.0 + number, f"event {number}"))
    audit.write(Alarm(1010.0, Reason.HANDLE_MISPLACED, "ses_a", "acme", "openai", "in a cookie"))
    audit.write(DaemonEvent(1011.0, "last"))
    audit.close()
    return path


def test_a_whole_log_is_whole(log: Path, tmp_path: Path) -> None:
    """What was checked, and against which key, stands in the answer; the daemon's own log is found."""
    said = coatcheck("audit", "verify", "--state-dir", "state", cwd=tmp_path)
    records = len(log.read_text().splitlines())
    assert said.code == 0 and not said.err
    assert said.out.startswith(f"whole: records 1 to {records} in 1 files, signed through record ")
    assert f"(key from {tmp_path}/state/checkpoint-key.pem.pub)" in said.out
    key = tmp_path / "state/checkpoint-key.pem.pub"
    said = coatcheck(
        "audit", "verify", log, "--key", key, "--checkpoints", "elsewhere.jsonl", "--json", cwd=tmp_path
    )
    answer = json.loads(said.out)
    assert said.code == 0 and answer["ok"] and answer["checkpoints"] >= 1 and answer["records"] == records


def test_a_changed_record_is_a_broken_log(log: Path, tmp_path: Path) -> None:
    """Exit code 1, the place, and what to do."""
    log.write_text(log.read_text().replace("event 4", "event 5", 1))
    said = coatcheck("audit", "verify", log, cwd=tmp_path)
    assert said.code == 1
    first, following = said.out.splitlines()[:2]
    assert first.startswith(f"{log}:") and ": rewritten: " in first
    assert following.startswith("  Keep all files as they are")
    assert said.out.splitlines()[-1].startswith("BROKEN, ")


def test_a_log_that_was_cut_off_shows_by_its_checkpoints(log: Path, tmp_path: Path) -> None:
    """Alone it looks whole: only the copies elsewhere know better."""
    lines = log.read_text().splitlines(keepends=True)
    kept = next(number for number, line in enumerate(lines) if "event 6" in line)
    log.write_text("".join(lines[:kept]))
    said = coatcheck("audit", "verify", log, "--checkpoints", "elsewhere.jsonl", cwd=tmp_path)
    assert said.code == 1 and ": truncated: " in said.out


def test_what_cannot_be_read_is_not_called_broken(log: Path, tmp_path: Path) -> None:
    """Exit code 3: nothing was verified."""
    said = coatcheck("audit", "verify", "nosuch.jsonl", cwd=tmp_path)
    assert (said.code, said.out) == (3, "") and "no audit log at nosuch.jsonl" in said.error
    (tmp_path / "wrong.pub").write_text("no key")
    said = coatcheck("audit", "verify", log, "--key", "wrong.pub", cwd=tmp_path)
    assert (said.code, said.out) == (3, "") and "a key cannot be read" in said.error


def test_tail_shows_one_kind_of_records(log: Path, tmp_path: Path) -> None:
    """Those that were refused are none here; two kinds at once would be empty and look like peace."""
    said = coatcheck("audit", "tail", log, "--alarms", cwd=tmp_path)
    assert said.code == 0 and said.out.count("handle_misplaced") == len(said.out.splitlines()) == 1
    for kind in ("--refused", "--shadow"):
        assert coatcheck("audit", "tail", log, kind, cwd=tmp_path).out == ""
    said = coatcheck("audit", "tail", log, "--refused", "--shadow", cwd=tmp_path)
    assert said.code == 2 and said.error.endswith("hint: give one of them\n")
    said = coatcheck("audit", "tail", cwd=tmp_path)
    assert said.code == 3 and "COATCHECK_STATE_DIR" in said.error


def test_tail_shows_lines_for_people_and_records_for_programs(log: Path, tmp_path: Path) -> None:
    """The newest last, filtered by what was asked."""
    said = coatcheck("audit", "tail", log, "-n", "3", cwd=tmp_path)
    assert said.code == 0 and len(said.out.splitlines()) == 3
    alarms = coatcheck(
        "audit", "tail", "--alarms", "--session", "ses_a", "--state-dir", "state", cwd=tmp_path
    )
    assert len(alarms.out.splitlines()) == 1 and "ALARM" in alarms.out and "handle_misplaced" in alarms.out
    records = coatcheck("audit", "tail", log, "-n", "0", "--json", cwd=tmp_path).out.splitlines()
    assert [json.loads(line)["seq"] for line in records] == list(range(1, len(records) + 1))
    assert not coatcheck("audit", "tail", log, "--session", "ses_b", cwd=tmp_path).out


def test_tail_follows_until_ctrl_c(log: Path, tmp_path: Path) -> None:
    """A record that is written meanwhile appears; Ctrl-C is the normal end, and no traceback."""
    following = subprocess.Popen(
        [COATCHECK, "audit", "tail", str(log), "-f", "-n", "1", "--json"],
        cwd=tmp_path, env=environment(PYTHONUNBUFFERED="1"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert following.stdout is not None
        following.stdout.readline()
        with log.open("a") as file:
            file.write('{"seq":99,"prev":"0","type":"daemon","at":1.0,"what":"new"}\n')
            file.flush()
            os.fsync(file.fileno())
        started = time.monotonic()
        assert json.loads(following.stdout.readline())["what"] == "new"
        assert time.monotonic() - started < 10
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=20)
        assert (following.returncode, err) == (130, "")
    finally:
        following.kill()
        following.wait()


def test_a_siem_is_fed_with_ocsf(log: Path, tmp_path: Path) -> None:
    """Every record of the log but its checkpoints, one event a line, oldest first."""
    said = coatcheck("audit", "tail", log, "-n", "0", "--ocsf", cwd=tmp_path)
    events = [json.loads(line) for line in said.out.splitlines()]
    records = [json.loads(line) for line in log.read_text().splitlines()]
    told = [record["seq"] for record in records if record["type"] != "checkpoint"]
    assert said.code == 0 and [event["metadata"]["sequence"] for event in events] == told
    (alarm,) = [event for event in events if event["class_uid"] == 2004]
    assert alarm["finding_info"]["title"] == "alarm: handle_misplaced" and alarm["severity_id"] == 4
