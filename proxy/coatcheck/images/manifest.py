"""What an image is made of, as manifest.json says it beside the image's files."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coatcheck.images.problem import ImageError

FORMAT = 1
"""Of the directory and of what init expects; a launcher refuses others."""
_MAX = 16 * 1024 * 1024
"""Bytes of a manifest: some thousand packages take 100 KB."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything but the files themselves. Nothing in it is secret."""

    id: str
    source: str
    """In words: `debian packages`, or the directory, archive or image that it was made from."""
    root: str
    """The root's own key in the cache."""
    kernel: str
    """The kernel's own key in the cache."""
    kernel_release: str
    kernel_form: str
    """`elf`, which QEMU starts at once, or `bzimage`."""
    created: int
    """Unix seconds."""
    agent: str
    """SHA-256 of the guest's agent."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Name to version: the kernel's, and those of a root from Debian packages."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a container image sets for its program."""
    command: tuple[str, ...] = ()
    """A container image's own program."""
    working_directory: str = ""
    user: str = ""
    """Who a container image would run it as; a sandbox runs it as one of its identities."""
    format: int = FORMAT

    def write(self, directory: Path) -> None:
        text = json.dumps(asdict(self), indent=1, sort_keys=True)
        (directory / "manifest.json").write_text(text + "\n", "utf-8")


def read(image: Path) -> Manifest:
    """The manifest of the image in the directory `image`. ImageError when it is not one of ours."""
    path = image / "manifest.json"
    hint = "rebuild the image: coatcheck image build --force"
    try:
        with path.open("rb") as file:
            content = file.read(_MAX)
        document = json.loads(content)
        document["command"] = tuple(document["command"])
        manifest = Manifest(**document)
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror}", hint) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ImageError(f"{path} is not an image manifest: {error}", hint) from error
    if manifest.format != FORMAT:
        raise ImageError(f"{image} has format {manifest.format}, and {FORMAT} is understood here", hint)
    return manifest


def sizes(image: Path) -> dict[str, tuple[int, int]]:
    """Each file's (bytes, bytes on the disk): a root is sparse."""
    found = {}
    for path in sorted(image.iterdir()):
        status = os.stat(path)
        found[path.name] = (status.st_size, status.st_blocks * 512)
    return found
