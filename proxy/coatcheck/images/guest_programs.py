"""The programs that run inside a sandbox, compiled here from their source once: static, so that they need
nothing of the image they run in.

Source and not a binary, because what runs as a sandbox's first process should be readable; C, because it must
start within milliseconds in an emulated machine.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from coatcheck.platform.errors import CoatcheckError
from coatcheck.platform.private_files import open_private_directory

AGENT_SOURCES = tuple(Path(__file__).parents[1] / room / "guest" for room in ("launcher", "durable"))
"""The agent, and what it does for sandboxes that outlive their boot; it works without the latter."""
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-Os", "-Wall", "-Wextra"),
    # It reads the host's frames and the answers of whatever listens in the sandbox: hardened like a server.
    *("-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2", "-fPIE", "-static-pie"),
    *("-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,-s"),
)
COMPILE_SECONDS = 120
"""It takes two; a machine that is busy with everything else gets a minute more than it needs."""
MAX_SAID = 2000
"""Characters of the compiler's complaint that a person is shown."""


class CompileError(CoatcheckError):
    """A guest program cannot be made. `hint` says what to do next."""


def agent(cache: Path) -> Path:
    """The guest's agent, compiled if `cache` does not hold it yet. CompileError when that cannot be done."""
    return program("agent", [file for place in AGENT_SOURCES for file in sorted(place.glob("*.[ch]"))], cache)


def program(name: str, sources: Sequence[Path], cache: Path) -> Path:
    """A static program of `sources` (headers too): `<cache>/<name>-<hash>`, where the hash is of all that it
    is made from, the compiler included. `cache` is a private directory, made if it is missing."""
    compiler = _compiler()
    digest = hashlib.sha256("\0".join((_version(compiler), *FLAGS)).encode())
    for source in sources:
        content = source.read_bytes()
        digest.update(f"\0{source.name}\0{len(content)}\0".encode() + content)
    open_private_directory(cache)
    made = cache / f"{name}-{digest.hexdigest()[:32]}"
    if not made.exists():
        _compile(compiler, [source for source in sources if source.suffix == ".c"], made)
    return made


def _compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise CompileError(
            "the sandbox's agent must be compiled once, and there is no C compiler (cc)",
            "install one: apt-get install gcc libc6-dev",
        )
    return found


def _version(compiler: str) -> str:
    return _run([compiler, "--version"]).splitlines()[0]


def _compile(compiler: str, sources: Sequence[Path], made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=".compiling-") as directory:
        unfinished = Path(directory) / made.name
        headers = [f"-I{place}" for place in sorted({source.parent for source in sources})]
        _run([compiler, *FLAGS, *headers, *map(str, sources), "-o", str(unfinished)])
        unfinished.chmod(0o555)
        os.replace(unfinished, made)  # two that compile at once make the same


def _run(command: Sequence[str]) -> str:
    # A daemon may be started with no PATH at all, and the compiler looks for its linker along it.
    environment = {"PATH": f"{Path(command[0]).parent}:{os.defpath}", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=COMPILE_SECONDS, env=environment
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()[:MAX_SAID]
        raise CompileError(
            f"the sandbox's agent cannot be compiled: {said or f'exit code {error.returncode}'}",
            "if headers or libc.a are missing: apt-get install gcc libc6-dev",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(
            f"the C compiler cannot be run: {error}", "apt-get install --reinstall gcc libc6-dev"
        ) from error
    return done.stdout
