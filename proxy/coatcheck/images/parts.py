"""The parts of images, kernels and roots: what each is made from, and so its key in the cache."""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coatcheck.images import debian, kernel, rootfs
from coatcheck.images.cache import Cache, remove
from coatcheck.images.directory import read_directory
from coatcheck.images.manifest import Manifest
from coatcheck.images.packages import Apt, Package, check_names
from coatcheck.images.problem import ImageError
from coatcheck.images.registry import Reference, fetch
from coatcheck.images.spool import Spool
from coatcheck.images.tree import Tree
from coatcheck.images.unpacking import unpack

_HERE = Path(__file__).parent
_ROOT_CODE = (
    "archive", "debian", "directory", "ext4", "finishing", "oci", "rootfs", "spool",
    "tree", "unpacking",
)  # fmt: skip
"""What decides about a root's bytes: a change there makes another root."""
_ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Source:
    """What the root is made from: Debian packages (beyond the default ones), a directory, or a container
    image from an archive or a registry."""

    packages: tuple[str, ...] = ()
    directory: Path | None = None
    archive: Path | None = None
    image: Reference | None = None

    def __str__(self) -> str:
        return str(self.directory or self.archive or self.image or "debian packages")


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel or a root in the cache, and what was written down when it was made."""

    path: Path
    about: Mapping[str, Any]


class Parts:
    """Finds the parts of one image in the cache, or makes them. Only while the cache is `building`."""

    def __init__(
        self, cache: Path, images: Cache, tell: Callable[[str], None], *, refresh: bool, force: bool
    ) -> None:
        self._images = images
        self._tell = tell
        self._refresh = refresh
        self._force = force
        self._apt = Apt(cache / "apt", tell)
        self._asked = False

    def kernel(self) -> Part:
        """Debian's kernel and its modules: vmlinuz, the modules' files, and `load`, the order."""

        def make(found: Sequence[Package]) -> Part:
            package = _kernel_package(found)
            key = hash_of(_code("kernel", "packages"), str(package))[:16]

            def fill(directory: Path) -> None:
                (archive,) = self._apt.fetch([package])
                self._tell("making the kernel ready to boot")
                made = kernel.read_package(archive)
                (directory / "vmlinuz").write_bytes(made.image)
                (directory / "vmlinuz").chmod(0o444)
                for name, content in made.modules:
                    (directory / name).write_bytes(content)
                (directory / "load").write_text("".join(f"{name}\n" for name, _ in made.modules))
                form = "elf" if made.image.startswith(b"\x7fELF") else "bzimage"
                _note(directory, {"release": made.release, "form": form, "packages": _versions([package])})

            return self._part("kernels", key, fill)

        return self._from_packages("kernels", (kernel.FLAVOUR,), _code("kernel", "packages"), make)

    def root(self, source: Source) -> Part:
        """The root as root.ext4."""
        if source.directory is not None:
            return self._from_directory(source.directory)
        if source.archive is not None:
            return self._from_archive(source.archive)
        if source.image is not None:
            return self._from_registry(source.image)
        return self._from_debian((*debian.ESSENTIAL, *debian.DEFAULT, *source.packages))

    def keep_archives(self, used: Iterable[Manifest]) -> None:
        """Keep the packages that these images are made of."""
        self._apt.keep_only({pair for manifest in used for pair in manifest.packages.items()})

    def _from_debian(self, names: tuple[str, ...]) -> Part:
        def make(found: Sequence[Package]) -> Part:
            def fill(directory: Path) -> None:
                archives = self._apt.fetch(found)
                self._tell(f"unpacking {len(archives)} packages")

                def read(tree: Tree, spool: Spool) -> None:
                    debian.unpack(archives, tree, spool, self._tell)
                    debian.configure(tree, spool)

                rootfs.make(directory, read, self._tell, finish=True)
                _note(directory, {"packages": _versions(found)})

            return self._part("roots", hash_of(_code(*_ROOT_CODE), *map(str, found))[:16], fill)

        return self._from_packages("roots", tuple(sorted(set(names))), _code(*_ROOT_CODE), make)

    def _from_directory(self, source: Path) -> Part:
        def fill(directory: Path) -> None:
            self._tell(f"reading {source}")
            rootfs.make(
                directory, lambda tree, spool: read_directory(source, tree, spool, self._tell), self._tell
            )
            _note(directory, {})

        return self._part("roots", hash_of(_code(*_ROOT_CODE), "directory", _state_of(source))[:16], fill)

    def _from_archive(self, source: Path) -> Part:
        try:
            with source.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ImageError(f"{source} cannot be read: {error.strerror}", "check the path") from error

        def fill(directory: Path) -> None:
            start = unpack(source, directory, self._tell)
            _note(directory, {"start": asdict(start)})

        return self._part("roots", hash_of(_code(*_ROOT_CODE), "archive", content)[:16], fill)

    def _from_registry(self, source: Reference) -> Part:
        def fill(directory: Path) -> None:
            fetched = directory / "fetched"
            fetched.mkdir(mode=0o700)
            try:
                start = unpack(fetch(source, fetched, self._tell), directory, self._tell)
            finally:
                remove(fetched)
            _note(directory, {"start": asdict(start)})

        # Not of its name: the digest is of the content, wherever it is.
        return self._part("roots", hash_of(_code(*_ROOT_CODE), "registry", source.digest)[:16], fill)

    def _from_packages(
        self,
        kind: str,
        names: Sequence[str],
        code: str,
        make: Callable[[Sequence[Package]], Part],
    ) -> Part:
        """What was made of these names before, unless it is to be refreshed: apt is not asked each time."""
        check_names(names)
        recipe = self._images.where / "recipes" / f"{kind}-{hash_of(code, *names)[:16]}"
        known = recipe.read_text().strip() if recipe.is_file() else ""
        there = known and (self._images.where / kind / known).is_dir()
        if there and not self._refresh:
            return _read(self._images.where / kind / known)
        complaint = "" if self._asked else self._apt.update()
        self._asked = True
        try:
            found = self._apt.resolve(names)
        except ImageError as error:
            if there and not self._force:
                self._tell(f"no newer packages could be looked for, the image stays: {complaint or error}")
                return _read(self._images.where / kind / known)
            if complaint:
                raise ImageError(f"{error}; and before: {complaint}", error.hint) from error
            raise
        part = make(found)
        recipe.parent.mkdir(mode=0o700, exist_ok=True)
        recipe.write_text(part.path.name)
        return part

    def _part(self, kind: str, key: str, fill: Callable[[Path], None]) -> Part:
        if self._force:
            self._images.forget(kind, key)
        return _read(self._images.make(kind, key, fill))


def modules(core: Part) -> list[tuple[str, bytes]]:
    """A kernel's modules in the order in which they load."""
    return [(name, (core.path / name).read_bytes()) for name in (core.path / "load").read_text().split()]


def hash_of(*values: object) -> str:
    return digest(json.dumps([str(value) for value in values]).encode(errors="surrogateescape"))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _code(*names: str) -> str:
    return hash_of(*(digest((_HERE / f"{name}.py").read_bytes()) for name in names))


def _kernel_package(found: Sequence[Package]) -> Package:
    kernels = [
        package
        for package in found
        if package.name.startswith("linux-image-") and package.name != kernel.FLAVOUR
    ]
    if len(kernels) != 1:
        raise ImageError(
            f"{kernel.FLAVOUR} depends on {len(kernels)} kernels instead of one",
            "are the apt sources Debian's?",
        )
    return kernels[0]


def _versions(packages: Sequence[Package]) -> dict[str, str]:
    return {package.name: package.version for package in packages}


def _state_of(directory: Path) -> str:
    """A hash of all names and attributes below: what changes a file changes its ctime."""
    known = hashlib.sha256()
    try:
        for path, names, files in os.walk(directory, onerror=_raise):
            for name in sorted((*names, *files)):
                status = os.stat(os.path.join(path, name), follow_symlinks=False)
                link = os.readlink(os.path.join(path, name)) if stat.S_ISLNK(status.st_mode) else ""
                known.update(
                    f"{path}/{name}\0{status.st_mode} {status.st_uid} {status.st_gid} {status.st_size} "
                    f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}\0{link}\0".encode(
                        errors="surrogateescape"
                    )
                )
            names.sort()
    except OSError as error:
        raise ImageError(
            f"the directory {directory} cannot be read: {error.strerror}", "give the directory of a root"
        ) from error
    return known.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _note(directory: Path, about: Mapping[str, Any]) -> None:
    (directory / _ABOUT).write_text(json.dumps(about, indent=1, sort_keys=True))


def _read(path: Path) -> Part:
    return Part(path, json.loads((path / _ABOUT).read_text()))
