"""What a start imports: the libraries that a command does not need are not waited for.

`python -m tests.bench.starts` says what that costs; here no clock is read.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.bench.starts import POLICY
from tests.cli.transcript import COATCHECK, environment

SERVED: Final = frozenset(
    {
        "OpenSSL", "aiodns", "aiohappyeyeballs", "aiohttp", "aioquic", "aiosignal", "annotated_doc",
        "annotated_types", "attr", "backports", "bcrypt", "brotli", "brotlicffi", "certifi",
        "coatcheck", "cryptography", "dotenv", "frozenlist", "h11", "h2", "hpack", "hyperframe", "idna",
        "jwt", "kaitaistruct", "mitmproxy", "mitmproxy_linux", "mitmproxy_rs", "multidict", "numpy",
        "prometheus_client", "propcache", "publicsuffixlist", "pydantic", "pydantic_core",
        "pydantic_settings", "pylsqpack", "pyparsing", "qemu", "ruamel", "service_identity",
        "shellingham", "snappy", "standardwebhooks", "typer", "typing_extensions", "typing_inspection",
        "wsproto", "yarl", "zstandard",
    }
)  # fmt: skip
"""Packages that `serve` may import before it is ready, when its settings name nothing that needs another:
no Vault (hvac, requests), no fleet (psycopg), no collector (opentelemetry), no AWS key (botocore)."""

IMPORTED: Final = re.compile(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", re.MULTILINE)


def packages(said: str) -> set[str]:
    """The top-level packages outside of the standard library that `-X importtime` told of."""
    tops = {name.partition(".")[0] for name in IMPORTED.findall(said)}
    assert "encodings" in tops, said[:500]
    built_in = set(sys.stdlib_module_names) | {"sitecustomize", "usercustomize"}
    return {name for name in tops - built_in if not name.startswith("_")}


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_help_imports_nothing(asked: str, tmp_path: Path) -> None:
    """It is a text that `make docs` writes."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", COATCHECK, asked],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said.stdout.startswith("Usage: coatcheck ")
    assert packages(said.stderr) == {"coatcheck"}


def test_help_that_nobody_reads_on_ends_quietly(tmp_path: Path) -> None:
    """`coatcheck --help | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nowhere:
        said = subprocess.run(
            [COATCHECK, "--help"],
            cwd=tmp_path, env=environment(), stdout=nowhere, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (said.returncode, said.stderr) == (1, b"")


def test_a_command_imports_only_its_own_group(tmp_path: Path) -> None:
    """`ca env --help` needs no part of `sandbox`, and no heavy library."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", COATCHECK, "ca", "env", "--help"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "coatcheck.cli.sandbox" not in IMPORTED.findall(said.stderr)
    assert not packages(said.stderr) & {"mitmproxy", "aiohttp", "hvac", "cryptography", "rich"}


def test_serve_imports_what_its_settings_need(tmp_path: Path) -> None:
    """A package that is new here is imported at its first use, or gets its place in the list above."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "policy.yaml").chmod(0o644)
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, (tmp_path / "log").open("w+") as log:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(60)
        daemon = subprocess.Popen(
            [sys.executable, "-X", "importtime", COATCHECK, "serve"],
            env=environment(
                NOTIFY_SOCKET=str(tmp_path / "notify"),
                COATCHECK_STATE_DIR=str(tmp_path / "state"),
                COATCHECK_POLICY=str(tmp_path / "policy.yaml"),
            ),
            stdout=log,
            stderr=log,
        )
        try:
            assert b"READY=1" in told.recv(4096), (tmp_path / "log").read_text()[-2000:]
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    imported = packages((tmp_path / "log").read_text())
    assert "aiohttp" in imported
    assert imported <= SERVED
