"""apt with state of its own: what it names, how it says no. Its lists are those that `make setup` fetched."""

from pathlib import Path

import pytest

from coatcheck.images.cache import find
from coatcheck.images.debian import DEFAULT, PROFILES
from coatcheck.images.packages import Apt, Package, content
from coatcheck.images.problem import ImageError
from coatcheck.settings.daemon import Settings


@pytest.fixture(scope="module")
def apt() -> Apt:
    cache = Settings().cache
    find(cache)
    return Apt(cache / "apt", print)


def test_a_package_brings_what_it_needs(apt: Apt) -> None:
    """Whatever this machine has installed: the guest has nothing."""
    found = {package.name: package for package in apt.resolve(["bash"])}
    assert {"bash", "libc6", "base-files"} <= set(found)
    assert found["bash"].architecture == "amd64"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_package_of_a_profile_is_there(apt: Apt, profile: str) -> None:
    """Under this name, or by what took its place; none brings a service manager."""
    found = {package.name for package in apt.resolve([*DEFAULT, *PROFILES[profile]])}
    missing = set(PROFILES[profile]) - found
    assert {name for name in missing if f"{name}t64" not in found} == set()
    assert "systemd" not in found


@pytest.mark.parametrize("name", ["no-such-package", "python3.1", "awk"])
def test_a_package_that_is_not_there_is_named(apt: Apt, name: str) -> None:
    """apt would take a name with a dot for a pattern and install all that it matches."""
    with pytest.raises(ImageError, match=f"no package {name}") as raised:
        apt.resolve(["bash", name])
    assert "apt-cache search" in raised.value.hint


@pytest.mark.parametrize("name", ["-o", "--help", "a b", "Bash", "../x", ""])
def test_what_is_no_name_does_not_reach_apt(apt: Apt, name: str) -> None:
    """An option in its place would be obeyed."""
    with pytest.raises(ImageError, match="is not a package name"):
        apt.resolve([name])


def test_a_version_with_an_epoch_names_a_file_as_apt_does() -> None:
    """A colon is written %3a."""
    assert Package("git", "1:2.39.5-0", "amd64").file == "git_1%3a2.39.5-0_amd64.deb"


def test_a_damaged_archive_says_what_to_remove(tmp_path: Path) -> None:
    """A full disk or a crash can leave one."""
    (tmp_path / "x.deb").write_bytes(b"!<arch>\nnonsense")
    with (
        pytest.raises(ImageError, match=r"x\.deb is damaged") as raised,
        content(tmp_path / "x.deb") as stream,
    ):
        stream.read()
    assert str(tmp_path / "x.deb") in raised.value.hint


def test_only_what_images_are_made_of_is_kept(tmp_path: Path) -> None:
    """Else the cache would grow with each update."""
    apt = Apt(tmp_path / "apt", print)
    kept, dropped = Package("a", "1", "all"), Package("a", "2", "all")
    for package in (kept, dropped):
        (tmp_path / "apt/archives" / package.file).touch()
    apt.keep_only({(kept.name, kept.version)})
    assert [path.name for path in (tmp_path / "apt/archives").glob("*.deb")] == [kept.file]
