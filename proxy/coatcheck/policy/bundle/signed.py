"""Policies that somebody vouched for: nothing else is read, and nothing older than what was read before."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coatcheck.decision.policy import Policy
from coatcheck.platform.private_files import PrivateFileError, read_private, write_atomically
from coatcheck.policy.bundle.bundle import MAX_BUNDLE_BYTES, Bundle, refused, verified
from coatcheck.policy.bundle.trust_root import read_trust_root
from coatcheck.policy.file.loading import Parse, parse_here, read_file
from coatcheck.policy.file.problem import PolicyError, Problem

FILE_NAME: Final = "policy-version.json"
"""In the state directory."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The bundle in force, and the id of the trusted key that vouched for it."""

    bundle: Bundle
    key: str


class HighestVersion:
    """The highest version that was ever in force, and its digest: in memory and in a file (0600).

    Remembered before the bundle is in force. When the disk refuses, it is in force all the same, and saving
    is tried again: a tightened policy must not wait for a full disk, and what is lost by a crash until then
    is only the protection against the one version before.
    """

    def __init__(self, path: Path, version: int, digest: str) -> None:
        self._path = path
        self.version = version
        """0: none yet."""
        self.digest = digest
        self.saved = True

    @classmethod
    def open(cls, directory: Path) -> "HighestVersion":
        """What `directory` remembers. PrivateFileError when the file is not ours alone, or damaged."""
        path = directory / FILE_NAME
        if not path.exists(follow_symlinks=False):
            return cls(path, 0, "")
        try:
            said: Any = json.loads(read_private(path))
            version, digest = said["version"], said["digest"]
            if type(version) is not int or not isinstance(digest, str):
                raise ValueError("no version")
        except (ValueError, KeyError, TypeError):
            raise PrivateFileError(
                f"{path}, the highest policy version seen, cannot be read",
                "restore it; if it is removed, the next bundle counts whatever its version is",
            ) from None
        return cls(path, version, digest)

    def check(self, bundle: Bundle) -> None:
        """PolicyError for what is older, or for other content under a version that was seen."""
        if bundle.version < self.version:
            raise refused(
                f"the bundle has version {bundle.version}, and {self.version} was in force already",
                f"to go back, sign the old policies again as version {self.version + 1}",
            )
        if bundle.version == self.version and bundle.digest != self.digest:
            raise refused(
                f"another bundle with version {bundle.version} was in force already",
                f"sign it again as version {self.version + 1}, and find out who signed the other one",
            )

    def remember(self, bundle: Bundle) -> None:
        """From now on nothing older counts."""
        if (self.version, self.digest) == (bundle.version, bundle.digest) and self.saved:
            return
        self.version, self.digest = bundle.version, bundle.digest
        content = json.dumps({"version": self.version, "digest": self.digest}).encode()
        try:
            write_atomically(self._path, content, overwrite=True)
        except OSError as error:
            if self.saved:  # told once, not at each attempt
                logger.error(
                    "policy version %d is in force, but cannot be remembered: %s: %s",
                    self.version, self._path, error.strerror,
                )  # fmt: skip
            self.saved = False
        else:
            self.saved = True


class SignedPolicies:
    """Reads bundles that a key in `trust_root` signed. The file is read anew each time: a key that leaves it
    counts no longer, at the next bundle at the latest. `highest` None: any version counts."""

    def __init__(self, trust_root: Path, highest: HighestVersion | None = None) -> None:
        self.trust_root = trust_root
        self._highest = highest
        self.accepted: Accepted | None = None

    @property
    def remembered(self) -> bool:
        """Whether the version in force is on disk."""
        return self._highest is None or self._highest.saved

    def read(self, path: Path, parse: Parse = parse_here) -> Mapping[str, Policy]:
        """The policies of the bundle at `path`. PolicyError for anything that is not exactly one."""
        trusted = read_trust_root(self.trust_root)
        if path.is_dir():
            raise refused(
                f"{path} is a directory, and only a signed bundle counts here (policy_trust)",
                "name a bundle: coatcheck policy bundle and coatcheck policy sign make one",
            )
        data = read_file(path, 2 * MAX_BUNDLE_BYTES)
        try:
            bundle, key = verified(data, trusted)
            if self._highest is not None:
                self._highest.check(bundle)
            policies = bundle.policies(parse)
        except PolicyError as error:
            raise PolicyError(_of(path.name, problem) for problem in error.problems) from None
        if self._highest is not None:
            self._highest.remember(bundle)
        self.accepted = Accepted(bundle, key)
        return policies


def signed_policies(trust_root: Path | None, state_directory: Path) -> SignedPolicies | None:
    """Where a trust root is set, the only reader that counts. PrivateFileError as `HighestVersion.open`."""
    return None if trust_root is None else SignedPolicies(trust_root, HighestVersion.open(state_directory))


def _of(file: str, problem: Problem) -> Problem:
    place = f"{file}/{problem.file}" if problem.file else file
    return Problem(problem.line, problem.column, problem.message, problem.instead, problem.level, place)
