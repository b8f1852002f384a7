"""What reads a stranger's archive reaches nothing of this machine, and not more of it than its limits say."""

import multiprocessing
import os
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from coatcheck.images import confined
from coatcheck.images.confined import Ended, Limits

pytestmark = pytest.mark.needs_debian("bwrap")
LIMITS = Limits(seconds=30, memory=1024**3, disk=16 * 1024**2)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir(mode=0o700)
    return path


def sh(script: str, work: Path, limits: Limits = LIMITS, *, network: bool = False) -> list[str]:
    """The lines that a script writes there."""
    lines: list[str] = []
    confined.run(["/bin/sh", "-c", script], work, limits, network=network, line=lines.append)
    return lines


def test_it_sees_programs_and_its_directory_alone(work: Path, tmp_path: Path) -> None:
    """No home, no secrets, no state of a daemon; and what it sees it cannot change."""
    (tmp_path / "state").write_text("of a daemon")
    seen = sh(f"ls /; ls -d /root /home /var /run /tmp {tmp_path} /etc/shadow 2>/dev/null; true", work)
    assert set(seen) <= {
        "bin",
        "coatcheck-image",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "sbin",
        "usr",
    }
    assert sh(
        "touch /usr/x /etc/x /x 2>/dev/null || echo no; touch mine; ls /dev/shm/* 2>/dev/null; true", work
    ) == ["no"]
    assert [path.name for path in work.iterdir()] == ["mine"]


def test_it_has_no_power_and_no_company(work: Path) -> None:
    """No capability, no other process, no environment, no network, no way to get a new user's powers."""
    assert set(sh("awk '/^Cap/ {print $2}' /proc/self/status", work)) == {"0" * 16}
    assert len(sh("ls -d /proc/[0-9]*", work)) <= 5
    assert sh("tail -n +3 /proc/net/dev | grep -v ' lo:'; true", work) == []
    names = {line.partition("=")[0] for line in sh("env", work)}
    assert names <= {"HOME", "LC_ALL", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "XDG_RUNTIME_DIR"}
    assert sh("mknod device b 8 0 2>/dev/null || echo no", work) == ["no"]
    assert sh("mount -t tmpfs none /coatcheck-image 2>/dev/null || echo no", work) == ["no"]


def test_proxies_are_all_that_it_gets_of_the_environment(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its network, where it fetches: the host's."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128/$(id) x")
    monkeypatch.setenv("SECRET_OF_SOMEONE", "value")
    told = sh("env", work, network=True)
    assert "HTTPS_PROXY=http://proxy.example:3128/$(id) x" in told
    assert not any("SECRET" in line for line in told)
    host = os.readlink("/proc/self/ns/net")
    assert sh("readlink /proc/self/ns/net", work, network=True) == [host]
    assert sh("readlink /proc/self/ns/net", work) != [host]


@pytest.mark.parametrize(
    ("script", "limits", "words"),
    [
        ("sleep 60", replace(LIMITS, seconds=1), "has taken longer than 1 s"),
        ("head -c 17000000 /dev/zero >x", LIMITS, "File size limit|failed"),
        (
            "for i in $(seq 300); do head -c 1000000 /dev/zero >$i; done; sleep 20",
            LIMITS,
            "has written more than",
        ),
        (
            "mkdir -p a/b; cd a/b; for i in 1 2 3; do head -c 9000000 /dev/zero >$i; done; sleep 20",
            LIMITS,
            "written",
        ),
        ("exec perl -e '$x = \"a\" x 2e9'", LIMITS, "Out of memory|failed"),
        ("i=0; while :; do i=$((i+1)); done", replace(LIMITS, seconds=2), "longer than|CPU|failed"),
        ("echo why >&2; exit 3", LIMITS, "sh failed: why"),
    ],
)
def test_it_ends_at_its_limits(work: Path, script: str, limits: Limits, words: str) -> None:
    """Time, bytes of a file, bytes of all files, memory, CPU; and what it complains about is told."""
    began = time.monotonic()
    with pytest.raises(Ended, match=words) as raised:
        sh(script, work, limits)
    assert raised.value.hint
    assert time.monotonic() - began < 15


def test_nothing_of_it_lives_on(work: Path) -> None:
    """What it started in the background ends with it."""
    sh("setsid sleep 4242 >/dev/null 2>&1 & sleep 0.2", work)
    time.sleep(0.2)
    assert b"sleep\0004242" not in b"".join(_commands())


def _commands() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return found


def test_what_it_says_cannot_steer_a_terminal(work: Path) -> None:
    """Names in an archive may hold escape sequences; a line without an end is cut."""
    assert sh(r"printf 'a\033[2Jb\n'", work) == ["a?[2Jb"]
    lines = sh("head -c 200000 /dev/zero | tr '\\0' x", work)
    assert max(map(len, lines)) <= 64 * 1024


def test_without_namespaces_it_does_not_run(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never without: a machine that has no bubblewrap reads no stranger's archive."""
    monkeypatch.setattr("coatcheck.images.programs._SEARCH", "/nowhere")
    with pytest.raises(Exception, match="is not installed"):
        sh("touch mine", work)
    assert list(work.iterdir()) == []


def test_it_is_seen_as_ours_by_no_process(work: Path) -> None:
    """Its user namespace is its own, so the same number is another user's."""
    host = os.readlink("/proc/self/ns/user")
    assert sh("readlink /proc/self/ns/user", work) != [host]


def test_a_normal_user_confines_as_root_does() -> None:
    """Nobody needs root for an image."""
    place = Path(tempfile.mkdtemp())  # pytest's own are closed to others
    try:
        os.chown(place, 65534, 65534)
        process = multiprocessing.get_context("fork").Process(target=_as_nobody, args=(place,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert (place / "mine").stat().st_uid == 65534
    finally:
        shutil.rmtree(place)


def _as_nobody(place: Path) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    assert sh(
        "touch mine; ls -d /root /home 2>/dev/null; awk '/^CapEff/ {print $2}' /proc/self/status", place
    ) == ["0" * 16]
