"""The demo's host of a sandbox on a redirect: its own part, with a program inside that needs no daemon."""

import json
from pathlib import Path

import pytest

from coatcheck.redirect.applying import Tool
from demo.transparent import _perform, means

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip")

PROGRAM = """
import json, os, socket
status = open("/proc/self/status").read()
print(json.dumps({
    "resolver": open("/etc/resolv.conf").read(),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "capabilities": [line.split()[1] for line in status.splitlines() if line.startswith("CapEff")],
    "environment": sorted(os.environ),
}))
"""


def asked(directory: Path, program: str) -> dict[str, object]:
    (directory / "program.py").write_text(program)
    return {
        "tool": Tool.NFT,
        "transparent": str(directory / "none.t"),
        "dns": str(directory / "none.d"),
        "environment": {"HANDLE": "cch_x"},
        "program": str(directory / "program.py"),
        "scratch": str(directory),
        "given": {},
    }


async def test_the_program_inside_has_one_wire_and_no_power(tmp_path: Path) -> None:
    """No capability to undo the redirect with, and the variables that it was given."""
    found = means()
    assert not isinstance(found, str), found
    said = (await _perform(found, asked(tmp_path, PROGRAM)))["said"]
    assert said["resolver"] == "nameserver 8.8.8.8\n"
    assert said["interfaces"] == ["eth0", "lo"]
    assert set(said["capabilities"]) == {"0" * 16}
    assert set(said["environment"]) - {"LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD"} == {"HANDLE", "PATH"}


async def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    """The act would say that it cannot be shown, and why."""
    found = means()
    assert not isinstance(found, str), found
    said = await _perform(found, asked(tmp_path, "raise SystemExit('it is broken')"))
    assert said == {"cannot": "it is broken"} and json.dumps(said)
