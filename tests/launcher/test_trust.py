"""What makes a browser inside trust its proxy: made beside the boot, never put over what is somebody's."""

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import trustme

from coatcheck.launcher.trust import for_browsers
from tests.launcher.scripted import identity

HOME = PurePosixPath("/home/agent")


@pytest.mark.needs_debian("certutil")
async def test_each_identitys_ca_is_in_the_database_of_its_home(tmp_path: Path) -> None:
    """One CA for both: made once, given to both."""
    authority = tmp_path / "ca"
    trustme.CA().cert_pem.write_to_path(authority)
    who = (
        replace(identity(tmp_path), ca=authority),
        replace(identity(tmp_path, "tool", 1001), ca=authority),
    )
    made = await for_browsers(who, [])
    assert {name: {"cert9.db", "key4.db"} <= set(files) for name, files in made.items()} == {
        "agent": True,
        "tool": True,
    }
    assert b"trustme" in made["agent"]["cert9.db"] and made["agent"] is made["tool"]


@pytest.mark.parametrize("at", ["/home/agent", "/home", "/home/agent/.pki"])
async def test_a_home_that_lasts_is_its_owners(tmp_path: Path, at: str) -> None:
    """What is in a volume was put there by somebody, and stays as it is."""
    assert await for_browsers((identity(tmp_path),), [PurePosixPath(at)]) == {}


async def test_a_ca_that_certutil_does_not_take_is_no_reason_to_have_no_sandbox(tmp_path: Path) -> None:
    """Nor is a host without certutil: everything but browsers has other means."""
    assert await for_browsers((identity(tmp_path),), [HOME / "work"]) == {"agent": {}}
