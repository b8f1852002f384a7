"""A real mitmdump as a child, with our script in it."""

import asyncio
import contextlib
import json
import os
import shlex
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from coatcheck.planes.stock import options as stock_options

SCRIPT = Path(stock_options.__file__).with_name("script.py")
SAFE = {
    "connection_strategy": "lazy",
    "rawtcp": "false",
    "upstream_cert": "false",
    "http2": "false",
    "http3": "false",
    "onboarding": "false",
}


@dataclass(frozen=True, slots=True)
class Mitmdump:
    """A running one."""

    port: int
    directory: Path
    session_file: Path

    @property
    def variables(self) -> dict[str, str]:
        """What it wrote for clients."""
        lines = shlex.split(self.session_file.read_text(), comments=False)
        return dict(word.split("=", 1) for word in lines if word != "export")

    def client(self, *, password: bool = True) -> httpx.AsyncClient:
        variables = self.variables
        trust = ssl.create_default_context(cafile=variables["SSL_CERT_FILE"])
        url = variables["HTTPS_PROXY"] if password else f"http://127.0.0.1:{self.port}"
        return httpx.AsyncClient(proxy=url, verify=trust, timeout=10)

    def records(self) -> list[dict[str, Any]]:
        lines = (self.directory / "state/audit/audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def command(
    directory: Path, policy: Path, port: int, changed: Mapping[str, str | None], *more: str
) -> list[str]:
    """`changed` options replace the safe ones; None leaves one out."""
    options = {
        **SAFE,
        "confdir": str(directory / "conf"),
        "coatcheck_policy": str(policy),
        "coatcheck_state_dir": str(directory / "state"),
        "coatcheck_session_file": str(policy.with_name("session.env")),
        **changed,
    }
    words = [str(Path(sys.executable).with_name("mitmdump")), "--listen-host", "127.0.0.1"]
    words += ["--listen-port", str(port), "-s", str(SCRIPT), *more]
    for name, value in options.items():
        if value is not None:
            words += ["--set", f"{name}={value}"]
    return words


def child_environment(**settings: object) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    made = {
        f"COATCHECK_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in settings.items()
    }
    return kept | made


async def refusal_of(words: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a mitmdump that is expected not to start."""
    child = await asyncio.create_subprocess_exec(
        *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(60):
            out, _ = await child.communicate()
    finally:
        await ended(child)
    assert child.returncode is not None
    return child.returncode, out.decode()


@asynccontextmanager
async def running(
    words: list[str], environment: Mapping[str, str], directory: Path, session_file: Path, port: int
) -> AsyncIterator[Mitmdump]:
    """Ready once it has written what clients need. Its output is in `output`."""
    with (directory / "output").open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *words, env=environment, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(60):
                while b"for clients" not in (directory / "output").read_bytes():
                    assert child.returncode is None, (directory / "output").read_text()
                    await asyncio.sleep(0.05)
            yield Mitmdump(port, directory, session_file)
        finally:
            await ended(child)


async def ended(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(10):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
