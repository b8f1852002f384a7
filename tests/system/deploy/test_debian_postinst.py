"""deploy/debian/postinst: what dpkg runs after it has unpacked, with commands that are this test's."""

import shlex
import subprocess
from pathlib import Path

import pytest

POSTINST = Path(__file__).parents[3] / "deploy/debian/postinst"
COMMANDS = ("systemd-sysusers", "chown", "chmod", "systemctl")


def configure(place: Path, *, before: str, fails: str) -> tuple[int, str, list[str]]:
    """Its exit code, its words on standard error, and what it called. `fails` is the call that fails."""
    (place / "bin").mkdir()
    for name in COMMANDS:
        command = place / "bin" / name
        command.write_text(
            f'#!/bin/sh\necho "{name} $*" >> {shlex.quote(str(place / "calls"))}\n'
            f'[ "{name} $*" != {shlex.quote(fails)} ]\n'
        )
        command.chmod(0o755)
    running = place / "systemd"
    running.mkdir()
    script = POSTINST.read_text().replace("/run/systemd/system", str(running))
    ran = subprocess.run(
        ["/bin/sh", "-c", script, "postinst", "configure", before],
        env={"PATH": f"{place / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stderr, (place / "calls").read_text().splitlines()


RESTART = "systemctl try-restart coatcheck.service"


def test_an_upgrade_whose_daemon_does_not_start_is_still_configured(tmp_path: Path) -> None:
    """A setting that the new one refuses is mended in a file; dpkg must not stop half-way for it."""
    code, said, calls = configure(tmp_path, before="0.1.0", fails=RESTART)
    assert code == 0 and calls[-1] == RESTART
    assert "journalctl --unit coatcheck.service" in said and "systemctl restart coatcheck" in said


@pytest.mark.parametrize(("before", "restarted"), [("0.1.0", True), ("", False)])
def test_what_ran_is_restarted_and_nothing_is_started(tmp_path: Path, before: str, restarted: bool) -> None:
    """Without a word of complaint."""
    code, said, calls = configure(tmp_path, before=before, fails="nothing")
    assert (code, said) == (0, "")
    assert (RESTART in calls) is restarted


def test_what_the_daemon_cannot_be_without_still_stops_it(tmp_path: Path) -> None:
    """Its user: a package without it would be configured in vain."""
    code, _, _ = configure(tmp_path, before="0.1.0", fails="systemd-sysusers coatcheck.conf")
    assert code != 0
