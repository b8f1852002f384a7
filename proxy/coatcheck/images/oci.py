"""A container image's archive, as `docker save`, `podman save` or `skopeo copy oci-archive:` write it.

Both forms: an OCI image layout (index.json, blobs named by their hash, which is checked) and Docker's own
(manifest.json). Everything in it is hostile input.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from coatcheck.images.archive import BadArchive, BoundedInfo, apply
from coatcheck.images.problem import ImageError
from coatcheck.images.spool import MAX_BYTES, Spool, TooLarge
from coatcheck.images.tree import Tree

MAX_DOCUMENT = 4 * 1024 * 1024
"""Bytes of an index, a manifest or a configuration: what registries accept of one."""
MAX_LAYERS = 127
"""What Docker itself can stack."""
MAX_MEMBERS = 10_000
"""Files in the outer archive: a few for each layer."""
MAX_INDEXES = 3
"""Indexes that lead to an index. One is common, for several architectures."""
_PLATFORM = ("linux", "amd64")


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """What the image says about how its program is started."""

    environment: Mapping[str, str]
    command: tuple[str, ...]
    working_directory: str
    user: str


def read_archive(path: Path, tree: Tree, spool: Spool, tell: Callable[[str], None]) -> ContainerConfig:
    """Apply every layer of the image in the archive at `path`. ImageError when it cannot be used."""
    try:
        with tarfile.open(path, mode="r:", tarinfo=BoundedInfo) as outer:
            return _Archive(outer).unpack(tree, spool, tell)
    except OSError as error:
        if error.filename is None:
            raise
        raise ImageError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except (tarfile.TarError, UnicodeError, ValueError, OverflowError) as error:
        raise BadArchive(
            f"{path} is not an uncompressed tar archive: {error}",
            "write it with `docker save IMAGE -o FILE`, or gunzip it first",
        ) from error
    except ImageError as error:
        raise type(error)(f"{path}: {error}", error.hint) from error


class _Archive:
    def __init__(self, outer: tarfile.TarFile) -> None:
        self._outer = outer
        self._members: dict[str, tarfile.TarInfo] = {}
        for count, member in enumerate(outer, start=1):
            if count > MAX_MEMBERS:
                raise BadArchive(
                    f"it holds more than {MAX_MEMBERS} files", "is it a root directory's archive?"
                )
            self._members[member.name.removeprefix("./")] = member

    def unpack(self, tree: Tree, spool: Spool, tell: Callable[[str], None]) -> ContainerConfig:
        if "index.json" in self._members:
            config, layers = self._layout()
        elif "manifest.json" in self._members:
            config, layers = self._docker()
        else:
            raise BadArchive(
                "it holds neither index.json nor manifest.json",
                "write it with `docker save IMAGE -o FILE`; a plain root: unpack it and use --from-dir",
            )
        if not 0 < len(layers) <= MAX_LAYERS:
            raise BadArchive(f"it has {len(layers)} layers, from 1 to {MAX_LAYERS} can be used")
        for number, (name, digest) in enumerate(layers, start=1):
            tell(f"unpacking layer {number} of {len(layers)}")
            self._layer(name, digest, number, tree, spool)
        return _config(config)

    def _layout(self) -> tuple[Any, list[tuple[str, str]]]:
        document = self._json("index.json")
        for _ in range(MAX_INDEXES):
            if "layers" in document:
                break
            document = self._json(*_blob(_choose(document)))
        if "layers" not in document or not isinstance(document["layers"], list):
            raise BadArchive("its index leads to no image")
        config = self._json(*_blob(document.get("config")))
        return config, [_blob(layer) for layer in document["layers"]]

    def _docker(self) -> tuple[Any, list[tuple[str, str]]]:
        images = self._json("manifest.json", of=list)
        if len(images) != 1 or not isinstance(images[0], dict):
            raise BadArchive(f"it holds {len(images)} images", "save one: docker save IMAGE -o FILE")
        name, layers = images[0].get("Config"), images[0].get("Layers")
        if not isinstance(name, str) or not isinstance(layers, list):
            raise BadArchive("its manifest.json names no configuration or no layers")
        return self._json(name), [(str(layer), "") for layer in layers]

    def _json(self, name: str, digest: str = "", of: type = dict) -> Any:
        with self._open(name) as file:
            content = file.read(MAX_DOCUMENT + 1)
        if len(content) > MAX_DOCUMENT:
            raise BadArchive(f"{name} is larger than {MAX_DOCUMENT} bytes")
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise BadArchive(f"{name} is not what its name says", "copy or save the image again")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise BadArchive(f"{name} is no JSON: {error}") from error
        if not isinstance(document, of):
            raise BadArchive(f"{name} is not of the form that it should have")
        return document

    def _open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():
            # docker save points to a layer that it wrote before: ../<id>/layer.tar
            base = name.split("/")[:-1]
            for part in member.linkname.split("/"):
                base = base[:-1] if part == ".." else [*base, part]
            member = self._members.get("/".join(base))
        if member is None or not member.isreg():
            raise BadArchive(f"it names {name!r}, which is not in it", "save the image again, whole")
        file = self._outer.extractfile(member)
        if file is None:
            raise BadArchive(f"{name!r} cannot be read")
        return file

    def _layer(self, name: str, digest: str, number: int, tree: Tree, spool: Spool) -> None:
        if digest:
            with self._open(name) as file:
                if hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != digest:
                    raise BadArchive(f"{name} is not what its name says", "copy or save the image again")
        with self._open(name) as file:
            try:
                apply(tree, _decompressed(file), spool, layer=number, whiteouts=True)
            except (OSError, zlib.error, zstandard.ZstdError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # our own disk's, not the archive's
                raise BadArchive(f"{name} cannot be decompressed: {error}") from error


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends in an error rather than never: what is skipped counts, too."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._left = 2 * MAX_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge("a layer has no end", "this archive is not to be trusted")
        return data


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], _Bounded(cast(IO[bytes], gzip.GzipFile(fileobj=file))))
    if magic == b"\x28\xb5\x2f\xfd":
        # A frame may ask for gigabytes of memory; registries' tools write windows up to 8 MiB.
        reader = zstandard.ZstdDecompressor(max_window_size=128 * 1024 * 1024)
        return cast(IO[bytes], _Bounded(cast(IO[bytes], reader.stream_reader(file, read_across_frames=True))))
    return file


def _choose(index: Mapping[str, Any]) -> Any:
    """The one image for this platform. Attestations beside it say that they are for `unknown`."""
    found = [entry for entry in index.get("manifests") or [] if isinstance(entry, dict)]
    fitting = [
        entry
        for entry in found
        if not isinstance(platform := entry.get("platform"), dict)
        or (platform.get("os"), platform.get("architecture")) == _PLATFORM
    ]
    if len(fitting) != 1:
        raise BadArchive(
            f"its index names {len(fitting)} images for {'/'.join(_PLATFORM)}", "save one image, for amd64"
        )
    return fitting[0]


def _blob(descriptor: Any) -> tuple[str, str]:
    """The name in the archive and the hash of what a descriptor points to."""
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    algorithm, _, value = str(digest).partition(":")
    if algorithm != "sha256" or len(value) != 64 or not value.isascii() or not value.isalnum():
        raise BadArchive(f"it points to {digest!r}, and only sha256 names a blob here")
    return f"blobs/sha256/{value}", value


def _config(document: Mapping[str, Any]) -> ContainerConfig:
    inner = document.get("config")
    config: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    pairs = (entry.partition("=") for entry in _words(config.get("Env")))
    return ContainerConfig(
        environment={name: value for name, _, value in pairs if name},
        command=(*_words(config.get("Entrypoint")), *_words(config.get("Cmd"))),
        working_directory=str(config.get("WorkingDir") or ""),
        user=str(config.get("User") or ""),
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
