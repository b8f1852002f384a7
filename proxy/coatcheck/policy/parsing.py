"""Policy files parsed in a process of their own, each content once: requests never wait for a parser.

A thread would not do: the parser is Python, and whatever thread runs it keeps the interpreter's lock from
the request path. What comes back is cut into pieces, so that no piece takes a millisecond to read.
"""

import hashlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import IO, Any, Final

from coatcheck import __version__
from coatcheck.decision.policy import Policy
from coatcheck.platform.errors import CoatcheckError
from coatcheck.policy.file.loading import parse_here
from coatcheck.policy.file.problem import PolicyError

PARSE_SECONDS: Final = 300.0
"""Until the process is given up. A thousand files of the largest size take about as long."""
PIECE: Final = 50
"""Rules that are read in one go, and so without another thread having its turn."""


class ParserFailed(CoatcheckError):
    """The process ended without an answer. Nothing is known about the files."""

    exit_code = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"the process that parses policies failed: {why}", "it is tried again in a moment")


class PolicyParser:
    """Parses files as `parse_here` does, elsewhere. What did not change since the last call is not parsed
    again, whether it was good or bad. One caller at a time, who waits; not on an event loop."""

    def __init__(self, serving: bool = True) -> None:
        self.serving = serving
        """Whether requests could wait. If not, files are parsed here: a process takes half a second."""
        self._known: dict[tuple[str, bytes], Policy | PolicyError] = {}
        """By name and digest: the files of the last call."""
        self.parsed = 0
        """Files since the start."""

    def __call__(self, files: Mapping[str, bytes]) -> Mapping[str, Policy | PolicyError]:
        """Raises ParserFailed, OSError."""
        keys = {name: (name, hashlib.sha256(data).digest()) for name, data in files.items()}
        new = {name: files[name] for name, key in keys.items() if key not in self._known}
        if new:
            found = _elsewhere(new) if self.serving else parse_here(new)
            self.parsed += len(new)
            self._known.update({keys[name]: each for name, each in found.items()})
        self._known = {key: self._known[key] for key in keys.values()}
        return {name: self._known[key] for name, key in keys.items()}


def _elsewhere(files: Mapping[str, bytes]) -> dict[str, Policy | PolicyError]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "coatcheck.policy"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},  # it needs none of what the daemon was told, and secrets may be among it
        start_new_session=True,  # Ctrl-C in a terminal is for the daemon to answer
    )
    late = threading.Timer(PARSE_SECONDS, process.kill)
    late.daemon = True
    late.start()
    try:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - two pipes, just above
        with process.stdin:
            pickle.dump(dict(files), process.stdin)
        return dict(_answers(process.stdout, len(files)))
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        raise ParserFailed(type(error).__name__) from None
    finally:
        late.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _answers(said: IO[bytes], count: int) -> Iterable[tuple[str, Policy | PolicyError]]:
    # Our own process speaks, from our own code: pickle may rebuild whatever a policy consists of.
    version = pickle.load(said)  # noqa: S301
    if version != __version__:
        raise ParserFailed(f"it is version {version}, and this daemon {__version__}: restart the daemon")
    for _ in range(count):
        name, problems, parts, pieces = pickle.load(said)  # noqa: S301
        if problems is not None:
            yield name, PolicyError(problems)
            continue
        rules = [rule for _ in range(pieces) for rule in pickle.load(said)]  # noqa: S301
        credentials = MappingProxyType(parts.pop("credentials"))
        yield name, Policy(**parts, credentials=credentials, rules=tuple(rules))


def answer(asked: IO[bytes], said: IO[bytes]) -> None:
    """The other end: parse what is asked for, in this process."""
    files: dict[str, bytes] = pickle.load(asked)  # noqa: S301 - from the daemon that started us
    pickle.dump(__version__, said)
    for name, found in parse_here(files).items():
        if isinstance(found, PolicyError):
            pickle.dump((name, found.problems, None, 0), said)
            continue
        parts: dict[str, Any] = {
            each.name: getattr(found, each.name)
            for each in fields(found)
            if each.init and each.name != "rules"
        }
        parts["credentials"] = dict(found.credentials)
        pieces = [found.rules[at : at + PIECE] for at in range(0, len(found.rules), PIECE)]
        pickle.dump((name, None, parts, len(pieces)), said)
        for piece in pieces:
            pickle.dump(piece, said)
    said.flush()
