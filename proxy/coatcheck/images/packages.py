"""Debian packages, from the machine's own apt sources, without touching the machine: nothing is installed.

apt works on directories of ours, as an ordinary user: lists and archives in the cache, and an empty list of
what is installed, so that it names all that a package needs. It checks signatures and hashes as always.
"""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coatcheck.images.problem import ImageError
from coatcheck.images.programs import ProgramFailed, Wrote, find, run
from coatcheck.platform.private_files import open_private_directory

ARCHITECTURE = "amd64"
"""What QEMU's machine `microvm` emulates."""
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_INST = re.compile(r"^Inst (\S+) \((\S+) .*\[(\S+)\]\)", re.MULTILINE)
_MISSING = re.compile(
    r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate|"
    # A name with a dot that is not there is taken for a pattern, and would bring in what that matches.
    r"Note, selecting \S+ for (?:regex|glob) '(\S+)'"
)
_UPDATE_SECONDS = 300
_DOWNLOAD_SECONDS = 1800
"""A slow line: 60 MB at 35 kB/s."""
_LOOK_SECONDS = 120
_NETWORK_HINT = "check that `apt-get update` works on this machine; apt's own settings and proxies are used"


@dataclass(frozen=True, slots=True, order=True)
class Package:
    name: str
    version: str
    architecture: str

    @property
    def file(self) -> str:
        """As apt names it."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class Apt:
    """apt with state of its own below `where`, in the cache. For one process at a time"""

    def __init__(self, where: Path, tell: Callable[[str], None]) -> None:
        self._where = where
        self._tell = tell
        self._archives = where / "archives"
        for directory in (
            where,
            where / "lists",
            where / "lists/partial",
            self._archives,
            self._archives / "partial",
        ):
            open_private_directory(directory)
        (where / "status").touch()

    def update(self) -> str:
        """Fetch the lists of the machine's sources. What apt complained about, when some could not be had:
        others may be enough."""
        self._tell("asking for the newest packages")
        try:
            self._run("apt-get", "update", seconds=_UPDATE_SECONDS, hint=_NETWORK_HINT)
        except ProgramFailed as error:
            return str(error)
        return ""

    def resolve(self, names: Sequence[str]) -> tuple[Package, ...]:
        """The packages and all that they need, sorted. ImageError names those that do not exist."""
        check_names(names)
        try:
            said = self._run(
                "apt-get", "install", "--simulate", *names, seconds=_LOOK_SECONDS, hint=_NETWORK_HINT
            ).text
        except ProgramFailed as error:
            raise ImageError(*_unresolved(error.said)) from error
        if _MISSING.search(said):
            raise ImageError(*_unresolved(said))
        found = {
            Package(name.partition(":")[0], version, arch) for name, version, arch in _INST.findall(said)
        }
        if not found:
            raise ImageError("apt names no packages to install", _NETWORK_HINT)
        return tuple(sorted(found))

    def fetch(self, packages: Collection[Package]) -> list[Path]:
        """Their archives, downloaded if the cache does not hold them."""
        missing = [package for package in packages if not (self._archives / package.file).is_file()]
        if missing:
            self._tell(f"downloading {len(missing)} packages")
            names = [f"{package.name}:{package.architecture}={package.version}" for package in missing]
            # `download` puts them where we stand, by the same names, after checking their hashes.
            self._run(
                "apt-get", "download",
                *(name.replace(":all=", "=") for name in names),
                seconds=_DOWNLOAD_SECONDS, hint=_NETWORK_HINT, where=self._archives / "partial",
            )  # fmt: skip
            for package in missing:
                arrived = self._archives / "partial" / package.file
                if not arrived.is_file():
                    raise ImageError(f"apt did not download {package.file}", _NETWORK_HINT)
                os.replace(arrived, self._archives / package.file)
        return [self._archives / package.file for package in packages]

    def keep_only(self, versions: Collection[tuple[str, str]]) -> None:
        """Remove the archives that no image of now is made of, by (name, version): else the cache would grow
        with each update."""
        kept = {
            Package(name, version, arch).file for name, version in versions for arch in (ARCHITECTURE, "all")
        }
        for file in self._archives.glob("*.deb"):
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def _run(
        self, program: str, *arguments: str, seconds: float, hint: str, where: Path | None = None
    ) -> Wrote:
        options = {
            "Dir::State": self._where,
            "Dir::State::lists": self._where / "lists",
            "Dir::State::status": self._where / "status",
            "Dir::State::extended_states": self._where / "extended_states",
            "Dir::Cache": self._where,
            "Dir::Cache::archives": self._archives,
            # Images of machines turn these off to be smaller; without them each question takes seconds.
            "Dir::Cache::pkgcache": "pkgcache.bin",
            "Dir::Cache::srcpkgcache": "srcpkgcache.bin",
            "Dir::Log": self._where,
            "APT::Architecture": ARCHITECTURE,
            "APT::Architectures": ARCHITECTURE,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",  # our directories are closed to the user _apt
            "APT::Get::Assume-Yes": "true",
            "Acquire::Retries": "3",
            "Acquire::http::Timeout": "30",
            "Acquire::https::Timeout": "30",
            "Acquire::Languages": "none",
            "Debug::NoLocking": "true",  # one build at a time: Cache.building
            "quiet": "1",
        }
        settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return run([program, *settings, *arguments], hint, seconds=seconds, where=where)


def check_names(names: Sequence[str]) -> None:
    """ImageError for what is not a package name, and what apt would take for an option."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ImageError(f"{name!r} is not a package name", "write it as `apt-cache search` does")


@contextmanager
def content(archive: Path) -> Iterator[IO[bytes]]:
    """The package's files as a tar stream."""
    process = subprocess.Popen(
        [find("dpkg-deb"), "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None  # noqa: S101 - PIPE
    try:
        yield process.stdout
        while process.stdout.read(1024 * 1024):
            pass  # what pads the archive's end: dpkg-deb must not die of a closed pipe
        _, said = process.communicate(timeout=_LOOK_SECONDS)
        if process.returncode:
            raise ImageError(
                f"the package {archive.name} is damaged: {said.decode(errors='replace').strip()[-300:]}",
                f"remove {archive} and run the same again",
            )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _unresolved(said: str) -> tuple[str, str]:
    missing = _MISSING.findall(said)
    names = sorted({first or second or third for first, second, third in missing})
    if names:
        return (
            f"the machine's apt sources have no package {', '.join(names)}",
            "check the name with `apt-cache search`, or add a source that has it; the kernel is Debian's",
        )
    return f"apt cannot resolve what the packages need: {said.strip()[-800:]}", _NETWORK_HINT
