"""Private parts of libraries: each use is listed, with its library and the tests that notice a change.

A library may change what is private in any release. So a use that is not listed here fails, and so does one
whose library has no bound in pyproject.toml.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coatcheck

ROOT: Final = Path(coatcheck.__file__).parent
PROJECT: Final = Path(__file__).parents[1]

USES: Final[dict[str, tuple[str, str]]] = {
    # the use: the distribution, the tests that would fail
    "mitmproxy.proxy.layers.http._base": ("mitmproxy", "system/planes/mitm/test_stream.py"),
    "mitmproxy.proxy.layers.http._http1": ("mitmproxy", "fuzz/test_framing.py"),
    "mitmproxy.proxy.layers.http._http2": ("mitmproxy", "system/planes/mitm/test_http2.py"),
    "mitmproxy.proxy.layers.http._http_h2": ("mitmproxy", "system/planes/mitm/test_http2.py"),
    "Layer._handle_event": ("mitmproxy", "system/planes/mitm/test_tunnel.py"),
    "HttpLayer._handle_event": ("mitmproxy", "system/planes/mitm/test_plane.py"),
    "HttpStream._handle_event": ("mitmproxy", "system/planes/mitm/test_stream.py"),
    "Http1Connection._handle_event": ("mitmproxy", "fuzz/test_framing.py"),
    "Http2Connection._handle_event": ("mitmproxy", "system/planes/mitm/test_http2.py"),
    "._legacy_log_events": ("mitmproxy", "system/planes/mitm/test_plane.py"),
    "h11._readers": ("h11", "fuzz/test_framing.py"),
    "h11._receivebuffer": ("h11", "fuzz/test_framing.py"),
    "._bytes_in_chunk": ("h11", "fuzz/test_framing.py"),
    "._bytes_to_discard": ("h11", "fuzz/test_framing.py"),
    "._reading_trailer": ("h11", "fuzz/test_framing.py"),
    "._lib": ("pyopenssl", "system/planes/mitm/test_plane.py"),
    "._ffi": ("pyopenssl", "system/planes/mitm/test_plane.py"),
    "._ssl": ("pyopenssl", "system/planes/mitm/test_plane.py"),
    "._from_ssl": ("pyopenssl", "system/planes/mitm/test_plane.py"),
    "._into_ssl": ("pyopenssl", "system/planes/mitm/test_plane.py"),
    "BaseConnector._create_connection": ("aiohttp", "system/client/sandbox/test_client.py"),
    "._factory": ("aiohttp", "system/client/sandbox/test_client.py"),
    "opentelemetry.exporter.otlp.proto.http._log_exporter": (
        "opentelemetry-exporter-otlp-proto-http",
        "telemetry/otel/test_http.py",
    ),
    "opentelemetry._logs": ("opentelemetry-api", "telemetry/otel/test_otlp.py"),
    "opentelemetry.sdk._logs": ("opentelemetry-sdk", "telemetry/otel/test_otlp.py"),
    "FileHandler._open": ("python", "telemetry/test_log_file.py"),
    "StreamReader._buffer": ("python", "system/planes/upstream/test_parent_proxy.py"),
}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Private names that a file of ours makes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Attribute(ctx=ast.Store()):
                found.add(node.attr)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
    return found


TREES: Final = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
OURS: Final = set().union(*map(defined, TREES.values()))


def named() -> Iterator[str]:
    """What is imported by a private name, or reached into by one that nobody here defines."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(module)) if not module.startswith("coatcheck"):
                    if any(map(private, module.split("."))):
                        yield module
                    yield from (f"{module}.{each.name}" for each in node.names if private(each.name))
                case ast.Import():
                    yield from (each.name for each in node.names if any(map(private, each.name.split("."))))
                case ast.Attribute(attr=attr) if private(attr) and attr not in OURS:
                    yield f".{attr}"
                case ast.Attribute(attr="_buffer", value=ast.Name(id="reader")):
                    yield "StreamReader._buffer"


def overridden() -> Iterator[str]:
    """Private methods of a library's class that a class of ours replaces."""
    for found in pkgutil.walk_packages(coatcheck.__path__, "coatcheck."):
        if found.name.endswith("__main__") or ".guest" in found.name:
            continue
        for made in vars(importlib.import_module(found.name)).values():
            if not inspect.isclass(made) or made.__module__ != found.name:
                continue
            for base in made.__mro__[1:]:
                if base.__module__.partition(".")[0] in ("coatcheck", "builtins", "enum", "typing", "abc"):
                    continue
                for name, value in vars(made).items():
                    if private(name) and inspect.isfunction(value) and name in vars(base):
                        yield f"{base.__name__}.{name}"
                        break


def test_each_private_part_of_a_library_that_is_used_is_listed() -> None:
    """By import, by reach and by override. One that is no longer used leaves the list."""
    assert {*named(), *overridden()} == set(USES)


def test_each_is_of_a_library_that_is_bounded_and_has_its_test() -> None:
    """A newer library is a decision of somebody who has run that test."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(each for group in project["optional-dependencies"].values() for each in group),
    ]
    bounded = {re.split(r"[\[=~<>! ]", each)[0] for each in declared if "==" in each or "~=" in each}
    # Python itself: `requires-python` names the oldest, and CI runs each that is classified.
    assert {library for library, _ in USES.values()} - {"python"} <= bounded
    assert [test for _, test in USES.values() if not (PROJECT / "tests" / test).is_file()] == []
