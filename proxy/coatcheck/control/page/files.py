"""The page's files: read once from the package, served as they are."""

from importlib.resources import files
from typing import Final

from coatcheck.control.page.browser import PREFIX

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def load() -> dict[str, tuple[str, bytes]]:
    """By path: content type and content. What has another ending is not served."""
    found: dict[str, tuple[str, bytes]] = {}
    for each in files(__package__).joinpath("static").iterdir():
        kind = _TYPES.get(each.name.rpartition(".")[2])
        if kind is not None:
            name = "" if each.name == "index.html" else each.name
            found[f"{PREFIX}/{name}"] = (kind, each.read_bytes())
    return found
