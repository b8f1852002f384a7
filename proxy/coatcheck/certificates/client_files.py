"""Files for clients that take no path of a bundle from a variable: each is named by a variable of its own."""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Final

WGETRC: Final = "wgetrc"
APT: Final = "apt.conf"
PHP: Final = "php"
"""A directory: PHP reads what ends in `.ini` in it."""
NODE: Final = "node-proxy.cjs"

_NODE_PROGRAM: Final = (Path(__file__).parent / "node_proxy.cjs").read_bytes()


def client_files(bundle: PurePath) -> Mapping[PurePath, bytes]:
    """What to write beside `bundle`, whose path is the one that its clients will see."""
    quoted = str(bundle).replace("\\", "\\\\").replace('"', '\\"')
    directory = bundle.parent
    return {
        directory / WGETRC: f"ca_certificate = {bundle}\n".encode(),
        directory / APT: f'Acquire::https::CAInfo "{quoted}";\n'.encode(),
        directory / PHP / "coatcheck.ini": (
            f'curl.cainfo = "{quoted}"\nopenssl.cafile = "{quoted}"\n'.encode()
        ),
        directory / NODE: _NODE_PROGRAM,
    }
