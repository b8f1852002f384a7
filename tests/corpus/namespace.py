"""The namespace that a world lives in: its own addresses, its own DNS, no route to anywhere else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.debian import find

ENTERED: Final = "COATCHECK_CORPUS_NAMESPACE"
NAMES: Final = {
    "api.vendor.example": ("11.0.0.10", "2a00:11::10"),
    "other.vendor.example": ("11.0.0.20", "2a00:11::20"),
    "hooks.vendor.example": ("11.0.0.30", "2a00:11::30"),
    "plain.vendor.example": ("11.0.0.40", "2a00:11::40"),
    "second.example": ("11.0.0.50", "2a00:11::50"),
    "evil.example": ("11.0.0.66", "2a00:11::66"),
}
"""Who is who: globally routable addresses, which nobody outside of this namespace will hear of."""
NEVER: Final = ("10.0.0.5", "169.254.169.254", "fd00::5")
"""And loopback: where something listens, and no sandbox's request may arrive."""
SYNTHETIC: Final = "198.18.0.0/15"


def enter() -> None:
    """Start this program anew, as root of a network and mount namespace that is made for it."""
    if os.environ.pop(ENTERED, None):
        _furnish()
        return
    unshare = [find("unshare") or "unshare", "--net", "--mount"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    os.environ[ENTERED] = "1"
    os.execv(unshare[0], [*unshare, sys.executable, "-m", "tests.corpus", *sys.argv[1:]])


def _furnish() -> None:
    ip = find("ip") or "ip"
    addresses = [each for pair in NAMES.values() for each in pair] + [*NEVER]
    lines = ["link set lo up"]
    lines += [f"addr add {each}/{128 if ':' in each else 32} dev lo" for each in addresses]
    subprocess.run([ip, "-batch", "-"], input="\n".join(lines), text=True, check=True)
    resolver = Path("/etc/resolv.conf").resolve()
    with tempfile.NamedTemporaryFile("w", prefix="resolv-", delete=False) as file:
        file.write("nameserver 127.0.0.1\nsearch corp.example\noptions timeout:1 attempts:1\n")
    os.chmod(file.name, 0o644)
    subprocess.run([find("mount") or "mount", "--bind", file.name, resolver], check=True)
    os.unlink(file.name)
