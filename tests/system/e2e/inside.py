"""What runs inside a sandbox: real programs, with handles in their environment and nothing else.

Whatever they print, and (for those that wait for it) all of their memory, is searched for every secret.
"""

import asyncio
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.sigv4.stand_in import environment as aws_environment
from tests.daemon import Sandbox
from tests.known_secrets import found_in, needles

SECONDS = 60.0
"""For one program. None needs five on an idle machine; a JVM on a busy one may."""

FINISHED = "--- finished ---"
"""A program that prints this line and then waits for the end of its input has its memory searched."""

_EPILOGUE = f"\nimport sys\nprint('\\n{FINISHED}', flush=True)\nsys.stdin.read()\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program did."""

    code: int
    output: str
    """Standard output and standard error, as they came."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A sandbox's view of the world."""

    sandbox: Sandbox
    home: Path
    environment: Mapping[str, str] = field(repr=False)

    async def run(self, *command: str, **variables: str) -> Ran:
        """Run a program; its environment and output hold no secret."""
        environment = {**self.environment, **variables}
        no_secret_in(
            "\0".join(f"{name}={value}" for name, value in environment.items()).encode(), "environment"
        )
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 24,
        )
        try:
            async with asyncio.timeout(SECONDS):
                output = await self._talk(process, list(environment.values()))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        no_secret_in(output, "output")
        return Ran(process.returncode or 0, output.decode(errors="replace"))

    async def python(self, program: str, **variables: str) -> str:
        """Run a Python program with the clients that the tests' own environment holds; what it printed.

        At its end it stands still, and its memory is searched.
        """
        ran = await self.run(sys.executable, "-c", program + _EPILOGUE, **variables)
        assert ran.code == 0 and FINISHED in ran.output, ran.output
        return ran.output

    async def _talk(self, process: asyncio.subprocess.Process, held: list[str]) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        output = b""
        async for line in process.stdout:
            output += line
            if line.strip() == FINISHED.encode():
                # A search that finds nothing must be able to find something: the handles are there.
                memory = await asyncio.to_thread(_memory, process.pid)
                assert any(value.encode() in memory for value in held if len(value) > 100)
                no_secret_in(memory, "memory")
                break
        process.stdin.close()
        output += await process.stdout.read()
        await process.wait()
        return output


def inside(sandbox: Sandbox, home: Path) -> Inside:
    """The environment that a launcher gives a sandbox: proxy, trust, and its handles."""
    home.mkdir(exist_ok=True)
    variables = {"HOME": str(home), "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    for handle in sandbox.minted:
        if handle.env is not None:
            variables[handle.env] = handle.value
        if handle.credential == "aws":
            variables |= aws_environment(handle.value)
    return Inside(sandbox, home, {**sandbox.environment, **variables})


def no_secret_in(data: bytes, where: str) -> None:
    """Fails when `data` holds one of the run's secrets, as it is or inside Base64. Names it, no more."""
    if found := sorted(found_in(data, needles())):
        raise AssertionError(f"the client's {where} holds: {', '.join(found)}")


def _memory(pid: int) -> bytes:
    """Everything that a process of ours can write to, which is where what it received would stand."""
    found = bytearray()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            region = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if region is None:
                continue
            start, end = (int(edge, 16) for edge in region.groups())
            try:
                memory.seek(start)
                found += memory.read(end - start)
            except OSError:
                continue  # a region that the kernel alone reads
    return bytes(found)
