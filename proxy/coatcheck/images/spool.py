"""Where the bytes of an image's files wait: numbered files in one directory, their sum and number bounded."""

import shutil
from pathlib import Path
from typing import IO

from coatcheck.images.problem import ImageError

MAX_BYTES = 16 * 1024**3
"""Of all files together. A large machine-learning image has 10 GB; a decompression bomb has no end."""
MAX_ENTRIES = 2_000_000
"""Files, directories and links. A large image has 300,000; each takes some 400 bytes here."""
_COPY = 1024 * 1024


class TooLarge(ImageError):
    """An archive or a directory holds more than an image may."""


class Spool:
    """Takes content in, up to its bounds. Files that are empty take none."""

    def __init__(self, where: Path, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._where = where
        self._bytes = 0
        self._entries = 0
        self._files = 0
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        where.mkdir(mode=0o700, exist_ok=True)

    def count_entry(self) -> None:
        self._entries += 1
        if self._entries > self._max_entries:
            raise TooLarge(
                f"more than {self._max_entries} files, directories and links",
                "an image for a sandbox is smaller: leave out what it does not need",
            )

    def take(self, source: IO[bytes]) -> tuple[Path | None, int]:
        """All of `source`, and how many bytes it was. TooLarge before more than the bound is on the disk."""
        path, size = self._where / str(self._files), 0
        with path.open("xb") as file:
            while chunk := source.read(_COPY):
                size += len(chunk)
                self._bytes += len(chunk)
                if self._bytes > self._max_bytes:
                    raise TooLarge(
                        f"more than {self._max_bytes / 1024**3:.1f} GiB of files",
                        "an image for a sandbox is smaller: leave out what it does not need",
                    )
                file.write(chunk)
        self._files += 1
        if not size:
            path.unlink()
            return None, 0
        return path, size

    def close(self) -> None:
        shutil.rmtree(self._where, ignore_errors=True)
