"""The default image, as `make setup` left it: what the packages' own scripts would have done is there."""

from pathlib import Path

import pytest

from coatcheck.images import manifest
from coatcheck.images.cache import find
from coatcheck.images.debian import DEFAULT, ESSENTIAL
from coatcheck.settings.daemon import Settings
from tests.images import filesystem

pytestmark = pytest.mark.needs_debian("mke2fs")


@pytest.fixture(scope="module")
def image() -> Path:
    return find(Settings().cache)


@pytest.fixture(scope="module")
def disk(image: Path) -> Path:
    return image / "root.ext4"


def test_the_filesystem_is_whole(disk: Path) -> None:
    """e2fsck finds nothing to repair."""
    filesystem.check(disk)


def test_every_package_is_in_it(image: Path) -> None:
    """With what they need, and without a package manager, a service manager or a kernel."""
    packages = manifest.read(image).packages
    assert {*DEFAULT, *ESSENTIAL} <= set(packages)
    assert not {"apt", "systemd", "udev"} & set(packages)


@pytest.mark.parametrize(
    "path", ["/usr/bin/python3", "/usr/bin/git", "/usr/bin/curl", "/usr/bin/bwrap", "/usr/bin/pdftotext",
             "/usr/sbin/nft", "/usr/bin/bash", "/usr/bin/dash", "/usr/bin/ps", "/usr/bin/which",
             "/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/profile"],
)  # fmt: skip
def test_what_agents_use_is_there(disk: Path, path: str) -> None:
    """Some of it by the hand of maintainer scripts, elsewhere."""
    assert filesystem.look(disk, path) is not None


def test_links_lead_where_scripts_would_have_led_them(disk: Path) -> None:
    """/usr is merged, and awk is a program."""
    assert [filesystem.target(disk, f"/{name}") for name in ("bin", "lib")] == ["usr/bin", "usr/lib"]
    assert filesystem.target(disk, "/usr/bin/awk") == "/etc/alternatives/awk"
    assert filesystem.target(disk, "/etc/alternatives/awk") == "/usr/bin/mawk"


def test_public_roots_are_one_file(disk: Path) -> None:
    """As curl, git and Python look for them."""
    bundle = filesystem.content(disk, "/etc/ssl/certs/ca-certificates.crt")
    assert bundle.count(b"-----BEGIN CERTIFICATE-----") == bundle.count(b"-----END CERTIFICATE-----") > 100


def test_nobody_can_log_in(disk: Path) -> None:
    """No password, and the users that commands run as are there with homes of their own."""
    shadow = filesystem.content(disk, "/etc/shadow").decode().splitlines()
    assert {line.split(":")[1] for line in shadow} == {"*"}
    for name, number in (("agent", 1000), ("tool", 1001)):
        home = filesystem.look(disk, f"/home/{name}")
        assert home is not None and (home.uid, home.mode) == (number, 0o700)


def test_python_need_not_compile(disk: Path) -> None:
    """The root is read-only: without byte-code every start would compile its modules, slowly, in vain."""
    (library,) = [name for name in filesystem.names(disk, "/usr/lib") if name.startswith("python3.")]
    cached = filesystem.names(disk, f"/usr/lib/{library}/__pycache__")
    assert {name.split(".")[0] for name in cached} >= {"os", "ssl", "subprocess", "argparse"}


def test_documentation_and_services_stay_out(disk: Path) -> None:
    """Only licences: they ask to stand beside what they license."""
    assert filesystem.names(disk, "/usr/share/doc/curl") == {"copyright"}
    for path in ("/usr/share/man", "/lib/systemd", "/etc/init.d", "/var/lib/dpkg"):
        assert filesystem.names(disk, path) == set()
