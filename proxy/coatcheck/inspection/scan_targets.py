"""What is searched: the places of one paused sandbox, as its supervisor names them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class PlaceKind(StrEnum):
    """As `sandbox.machine.RemainKind`: they come from another process, as JSON."""

    MEMORY = "memory"
    DISK = "disk"
    DEVICE_STATE = "device state"
    FILE = "file"
    PROCESS = "process"
    """With all processes that it, or they, started: memory, nameless open files, what they may write."""


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    """For people, and it stands in the statement: ours, never the sandbox's choice."""
    kind: PlaceKind
    path: str | None
    """A file, a block device, or a directory with all that is below it."""
    pid: int | None


class Subject(Protocol):
    """A sandbox as an inspection sees it."""

    @property
    def sandbox(self) -> str: ...

    @property
    def sessions(self) -> Sequence[str]:
        """The ids of its identities' sessions."""

    async def pause(self) -> bool:
        """Stop it: nothing of it runs when this returns. True when it ran before."""

    async def resume(self) -> None:
        """Let it run again. Idempotent."""

    async def remains(self) -> Sequence[Mapping[str, object]]:
        """The places, while it is paused: `{"name", "kind", "path" or None, "pid" or None}`."""


def place_of(said: Mapping[str, object]) -> Place:
    """ValueError for anything that is not exactly one file or one process."""
    name, path, pid = said.get("name"), said.get("path"), said.get("pid")
    if not isinstance(name, str) or not name.isprintable() or not name.isascii() or len(name) > 100:
        raise ValueError("a place has a name of at most 100 printable letters")
    if (path is None) == (pid is None) or not isinstance(path, str | None) or not isinstance(pid, int | None):
        raise ValueError(f"{name} is not one file or one process")
    return Place(name, PlaceKind(str(said.get("kind"))), path, pid)
