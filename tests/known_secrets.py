"""Every secret that the suite uses, by name: random in each run, and remembered.

Remembered so that `tests.secret_grep` can look for all of them in everything that was written. The workers
of one run (pytest -n) share them: tests whose parameters hold one must have one name in all workers.
"""

import base64
import os
import random
import secrets
import string

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(16)
_ALPHABET = string.ascii_letters + string.digits
_by_name: dict[str, str] = {}


def known_secret(name: str, *, prefix: str = "sk-test-", length: int = 40) -> str:
    """The run's secret of that name: `prefix` and `length` random letters and digits."""
    if name not in _by_name:
        chosen = random.Random(f"{RUN} {name}").choices(_ALPHABET, k=length)
        _by_name[name] = prefix + "".join(chosen)
    return _by_name[name]


def remember_secret(name: str, value: str) -> str:
    """Registers a secret that something else made (a key pair, a Vault token). Returns it."""
    if len(value) < 16:
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
