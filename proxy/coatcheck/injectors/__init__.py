"""The ways to inject a credential, one a file: how policy spells it, where its handle is, how it edits a
request. A new file here with a `WAY` is a new way; nothing else names one. Pure: no I/O, no clock.

May import: sigv4, decision.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Final

from coatcheck.injectors.spelling import Way


def find_ways(package: str, path: list[str]) -> Mapping[str, Way]:
    """The ways of every module in a package, by their keys. Raises ValueError for a key of two ways."""
    found: dict[str, Way] = {}
    taken: dict[str, str] = {}
    for module in iter_modules(path):
        way = getattr(import_module(f"{package}.{module.name}"), "WAY", None)
        if not isinstance(way, Way):
            continue
        for key in (*way.keys, *way.parts.keys() - way.keys.keys()):
            if key in taken:
                raise ValueError(f"{module.name} and {taken[key]} both have the key {key}")
            taken[key] = module.name
        found[way.key] = way
    return MappingProxyType(found)


WAYS: Final = find_ways(__name__, __path__)
"""By the key that policy files write."""
