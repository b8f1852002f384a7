"""What proves the daemon to a server: a token or password in a file of its own."""

import os
import stat
from pathlib import Path
from typing import Final

from coatcheck.secrets import SecretUnavailable

_MATERIAL_BYTES: Final = 65_536
"""A Kubernetes token has 1 to 2 KiB; more than this is not login material."""

_WHERE: Final = (
    "make it readable for the daemon's user, mode 0600, or correct COATCHECK_VAULT_TOKEN_FILE,"
    " COATCHECK_VAULT_SECRET_ID_FILE or COATCHECK_VAULT_JWT_FILE"
)


def read_material(path: Path) -> str:
    """The stripped text of a file that holds login material.

    Raises:
        SecretUnavailable: it is missing, unreadable, empty, too large or no regular file.
    """
    try:
        # Without O_NONBLOCK a FIFO in its place would hold the thread for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            data = file.read(_MATERIAL_BYTES + 1) if regular else b""
    except OSError as exc:
        problem = exc.strerror or type(exc).__name__
        raise SecretUnavailable(f"cannot read the Vault login file {path}: {problem}", _WHERE) from None
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or len(data) > _MATERIAL_BYTES:
        raise SecretUnavailable(
            f"the Vault login file {path} must hold one line of ASCII text, at most {_MATERIAL_BYTES} bytes",
            _WHERE,
        )
    return text
