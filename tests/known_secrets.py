"""Every secret that the suite uses, by name: random in each run, and remembered.

Remembered so that `tests.secret_grep` can look for all of them in everything that was written. The workers
of one run (pytest -n) share them: tests whose parameters hold one must have one name in all workers.
"""

import base64
import os
import random
import secrets
import string
from collections.abc import Iterator, Mapping

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(16)
_ALPHABET = string.ascii_letters + string.digits
_by_name: dict[str, str] = {}
_LEAST = 16
"""Letters of the shortest secret."""
_LETTERS = (_ALPHABET + "+/-_").encode()
_MARKS = bytes(b"x"[0] if letter in _LETTERS else b" "[0] for letter in range(256))


def known_secret(name: str, *, prefix: str = "sk-test-", length: int = 40) -> str:
    """The run's secret of that name: `prefix` and `length` random letters and digits."""
    if name not in _by_name:
        chosen = random.Random(f"{RUN} {name}").choices(_ALPHABET, k=length)
        _by_name[name] = prefix + "".join(chosen)
    return _by_name[name]


def remember_secret(name: str, value: str) -> str:
    """Registers a secret that something else made (a key pair, a Vault token). Returns it."""
    if len(value) < _LEAST:
        raise ValueError(f"{name}: too short to be looked for: any text could hold it by chance")
    if _by_name.setdefault(name, value) != value:
        name = f"{name} ({len(_by_name)})"
        _by_name[name] = value
    return value


def needles() -> dict[bytes, str]:
    """What to look for -> whose it is: each secret as it is, and inside any Base64 text."""
    found: dict[bytes, str] = {}
    for name, value in _by_name.items():
        raw = value.encode()
        found[raw] = name
        for shift in range(3):
            # In Base64 a string has three faces, by where it starts in a group of three bytes. Its
            # first and last characters mix with its neighbours' bits, so they are left out.
            face = base64.b64encode(b"\0" * shift + raw).rstrip(b"=")
            found[face[(shift * 8 + 5) // 6 : -1]] = f"{name}, in Base64"
    return found


def found_in(data: bytes, wanted: Mapping[bytes, str]) -> set[str]:
    """Whose of the `wanted` needles stand in `data`.

    Hundreds are looked for in hundreds of megabytes, each search by itself taking a while. Nearly all consist
    of letters that come in long runs nowhere else: those runs are cut out once, and the needles looked for
    in them; the few others in everything.
    """
    runs = b" ".join(_runs(data))
    found = set[str]()
    for needle, name in wanted.items():
        in_a_run = len(needle) >= _LEAST and b" " not in needle.translate(_MARKS)
        if needle in (runs if in_a_run else data):
            found.add(name)
    return found


def _runs(data: bytes) -> Iterator[bytes]:
    """Each part of `data` that is of _LETTERS alone, as far as it goes, and as long as a needle at least."""
    marks = data.translate(_MARKS)
    end = 0
    while (start := marks.find(b"x" * _LEAST, end)) >= 0:
        end = marks.find(b" ", start)
        end = len(data) if end < 0 else end
        yield data[start:end]
