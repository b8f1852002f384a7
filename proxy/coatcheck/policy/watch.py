"""Policy files as they change: read when they stand still, so that no half-written one is ever in force.

The first half of a file can be a valid policy that allows more: a rule without the `paths` which its last
lines would have named.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from coatcheck.decision.policy import Policy
from coatcheck.policy.bundle.signed import SignedPolicies
from coatcheck.policy.file.loading import Parse, load_directory, load_file, parse_here
from coatcheck.policy.file.problem import PolicyError, Problem

RETRY_SECONDS = 10.0
"""Between two readings of files that were refused: it may have been our fault (no descriptor, no memory)."""


class PolicyWatch:
    """The files at `path`: a directory of policies, or one; with `signed`, one bundle and nothing else.
    One caller at a time."""

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        signed: SignedPolicies | None = None,
        parse: Parse = parse_here,
    ) -> None:
        self._path = path
        self._signed = signed
        self._clock = clock
        self._parse = parse
        self._read: object = None
        """How the files looked that were read last."""
        self._seen: object = None
        """How they looked at the last call of `due`."""
        self._retry_at = float("inf")

    def read(self) -> Mapping[str, Policy]:
        """All policies. PolicyError, also when the files changed while they were read; OSError."""
        self._read = self._stamps()
        self._retry_at = self._clock() + RETRY_SECONDS
        if self._signed is not None:
            # Changed while it is read, its signature fails.
            policies = self._signed.read(self._path, self._parse)
        elif self._path.is_dir():
            policies = load_directory(self._path, self._parse)
        else:
            policy = load_file(self._path, self._parse)
            policies = {policy.name: policy}
        if self._signed is None and self._stamps() != self._read:
            raise PolicyError(
                [Problem(0, 0, "the files changed while they were read", "they are read again in a moment")]
            )
        if self._signed is None or self._signed.remembered:
            self._retry_at = float("inf")
        return policies

    def due(self) -> bool:
        """Whether to read again. Call it about once a second: files must look the same at two calls."""
        now = self._stamps()
        still, self._seen = now == self._seen, now
        return still and (now != self._read or self._clock() >= self._retry_at)

    def _stamps(self) -> object:
        root = _stamp(self._signed.trust_root) if self._signed is not None else None
        return _stamp(self._path), root


def _stamp(path: Path) -> object:
    """What changes when a policy file does: names, sizes, inodes and times."""
    try:
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        return [(file.name, s.st_mtime_ns, s.st_size, s.st_ino) for file in files for s in (file.stat(),)]
    except OSError as error:
        return str(error)
