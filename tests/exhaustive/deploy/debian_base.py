"""A small Debian 13 to install things into: made once by debootstrap, kept beside the images.

`base()` is the one function that makes it. It is reached through the archive that this machine's apt knows.
"""

import fcntl
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from coatcheck.settings.daemon import Settings
from tests import debian

RELEASE = "trixie"
PACKAGES = ("python3", "ca-certificates", "systemd-standalone-sysusers")
"""What the package depends on; nothing else may be there, or its dependencies could be incomplete."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def base() -> Path:
    """The base as a tar. Skips the calling test where it cannot be made: without root or debootstrap."""
    debian.need("debootstrap")
    if os.geteuid() != 0:
        pytest.skip("needs root: debootstrap and chroot")
    recipe = hashlib.sha256(repr((RELEASE, PACKAGES)).encode()).hexdigest()[:12]
    kept = Settings().cache / "debian" / f"{RELEASE}-{recipe}.tar"
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (kept.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two callers at once: one makes it
        if not kept.exists():
            _make(kept)
    return kept


def _make(kept: Path) -> None:
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True, check=True
    )
    archive = asked.stdout.split("\n", 1)[0]
    with tempfile.TemporaryDirectory(prefix="debian-", dir=kept.parent) as directory:
        root = Path(directory) / "root"
        command = [
            *("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
            *(f"--keyring={KEYRING}", RELEASE, str(root), archive),
        ]
        made = subprocess.run(
            command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False
        )
        if made.returncode != 0:
            pytest.fail(
                f"debootstrap made no base:\n{made.stdout[-3000:]}{made.stderr[-1000:]}", pytrace=False
            )
        # What is downloaded is unpacked already, and where from is nobody's business.
        for waste in (
            "var/cache/apt",
            "var/lib/apt/lists",
            "usr/share/doc",
            "usr/share/man",
            "usr/share/locale",
        ):
            subprocess.run(["rm", "-rf", str(root / waste)], check=True)
        (root / "etc/apt/sources.list").write_text("")
        (root / "var/log/bootstrap.log").unlink(missing_ok=True)
        fresh = Path(directory) / "base.tar"
        subprocess.run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(fresh), "."], check=True)
        fresh.rename(kept)


def unpacked(directory: Path) -> Path:
    """A fresh copy of the base in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-C", str(directory), "-xpf", str(base())], check=True)
    return directory


def inside(root: Path, *command: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run `command` in the system at `root`: processes and network of its own, loopback and nothing else."""
    script = 'mount -t proc proc "$0/proc" && ip link set lo up && exec chroot "$0" "$@"'
    return subprocess.run(
        ["unshare", "-mnpf", "--kill-child", "sh", "-c", script, str(root), *command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
        },
        check=False,
    )
