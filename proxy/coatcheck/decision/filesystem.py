"""What a policy says about a sandbox's files. `containers/filesystem.py` enforces it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filesystem:
    """What a sandbox's commands may do with files: canonical absolute paths, without patterns.

    All may be read but `deny_read` and what is below; nothing may be written but `allow_write`, what is
    below, and the directories for temporary files.
    """

    allow_write: tuple[str, ...] = ()
    deny_read: tuple[str, ...] = ()
