"""A real agent program, and how it is told to work: Claude Code, as the package claude-agent-sdk brings it.

It is one program of 381 MB. It needs nothing but a home, a shell, and an API whose key it finds in its
environment; which key that is, is no business of its own.
"""

import importlib.util
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coatcheck.client.sandbox import Process

PACKAGE: Final = "claude-agent-sdk"
MODEL: Final = "claude-sonnet-5"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
}
"""Nobody is there who would answer: it would wait for what policy refuses."""
OPTIONS: Final = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    # Without plugins, memories and servers that it has not: half the seconds in an emulated guest.
    *("--bare", "--tools", "Bash", "--allowedTools", "Bash", "--model", MODEL),
)
"""It takes its tasks from standard input, one after another, and may run commands without asking."""
LINE_BYTES: Final = 1 << 20
"""The longest line that it may say: a stranger's words are bounded."""


class AgentError(Exception):
    """The agent program did not do what it was asked. `hint` says what it wrote."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def bundled() -> Path | None:
    """The program, if the package is installed here."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bundled" / "claude"
    return program if program.is_file() else None


@dataclass(slots=True)
class Conversation:
    """With an agent program that runs; it is asked one task after another."""

    process: Process
    said: bytearray = field(default_factory=bytearray)
    """All that it wrote."""
    _lines: AsyncIterator[bytes] | None = None

    async def ask(self, task: str) -> str:
        """What it answers in the end. AgentError when it fails, or ends."""
        if self._lines is None:
            self._lines = self._read()
        asked = {"type": "user", "message": {"role": "user", "content": task}}
        await self.process.write(json.dumps(asked).encode() + b"\n")
        async for line in self._lines:
            event = _event(line)
            if event.get("type") != "result":
                continue
            answer = str(event.get("result", ""))
            if event.get("is_error"):
                raise AgentError("the agent program failed", answer[:500])
            return answer
        raise AgentError("the agent program ended", self.said[-500:].decode(errors="replace"))

    async def end(self) -> int:
        """No more tasks; its exit code."""
        await self.process.end_input()
        async for line in self._lines or self._read():
            self.said += line
        return (await self.process.wait()).exit_code

    async def _read(self) -> AsyncIterator[bytes]:
        line = bytearray()
        async for output in self.process:
            self.said += output.data
            if output.stderr:
                continue
            *whole, rest = output.data.split(b"\n")
            for piece in whole:
                yield bytes(line) + piece
                line.clear()
            line += rest
            if len(line) > LINE_BYTES:
                raise AgentError(f"the agent program said a line of more than {LINE_BYTES} bytes")


def _event(line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def command(program: str, *options: str) -> Sequence[str]:
    """To start it with."""
    return (program, *OPTIONS, *options)
