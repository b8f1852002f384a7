"""Programs whose clocks a test moves while they run: a preloaded library, compiled here (`clocks.c`)."""

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import debian

SOURCE = Path(__file__).with_suffix(".c")


@dataclass
class Clocks:
    """Of every program that is started with `environment`."""

    library: Path
    file: Path
    wall: int = 0
    asleep: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCKS": str(self.file)}

    def set(self, wall: int) -> None:
        """The wall clock is so many seconds off from now on; negative: behind."""
        self.wall = wall
        self._write()

    def suspend(self, seconds: int) -> None:
        """All programs slept, and so did the machine."""
        self.asleep += seconds
        self._write()

    def _write(self) -> None:
        with self.file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("qq", self.wall, self.asleep))


def clocks(directory: Path) -> Clocks:
    debian.need("cc")
    made = Clocks(directory / "clocks.so", directory / "clocks")
    made.file.write_bytes(bytes(16))
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(made.library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made
