"""A stand-in model that works: for two tasks it asks for commands, reads what they print, and answers.

It knows how to do the tasks and nothing of their results: what it says in the end it has from the tools.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SHELLS: Final = ("Bash", "execute", "shell")
"""What agent programs call the tool that runs a command, most specific first."""

PRIMES_TASK: Final = "Compute the first 50 primes."
REPORT_TASK: Final = "Read report.pdf, a long report, and write a summary of it to summary.md, in Markdown."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the model wants run."""

    tool: str
    command: str


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says when it has no more to ask."""

    text: str


type Step = Callable[[Sequence[str]], str]
"""The outputs of the tools so far -> the next command."""


def next_turn(messages: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> ToolCall | Said | None:
    """What the model does next, from the whole conversation; None when it is about neither task."""
    asked = _asked_last(messages)
    if asked is None:
        return None
    task, since = asked
    steps, conclude = _TASKS[task]
    outputs = tuple(_outputs(messages[since:]))
    if len(outputs) >= len(steps):
        return Said(conclude(outputs))
    shell = next((name for name in SHELLS if name in tools), None)
    if shell is None:
        return Said("I have no tool that runs commands.")
    return ToolCall(shell, steps[len(outputs)](outputs))


def primes_in(text: str) -> list[int]:
    """The numbers of the first line that holds many of them."""
    for line in text.splitlines():
        numbers = [int(number) for number in re.findall(r"\b\d+\b", line)]
        if len(numbers) >= 50:
            return numbers[:50]
    return []


def _write_summary(outputs: Sequence[str]) -> str:
    """A Markdown summary of what the last tool read out of the report."""
    lines = ["# Summary of report.pdf", ""]
    for line in outputs[-1].splitlines():
        line = line.strip()
        if line.startswith("Chapter"):
            lines += ["", f"## {line}", ""]
        elif line.startswith("Finding:"):
            lines.append(f"- {line.removeprefix('Finding:').strip()}")
    return f"printf '%s\\n' {shlex.quote('\n'.join(lines))} > summary.md && wc -l summary.md"


_SIEVE: Final = (
    'python3 -c "print(*[n for n in range(2, 240) if all(n % d for d in range(2, int(n ** .5) + 1))][:50])"'
)

_TASKS: Final[Mapping[str, tuple[tuple[Step, ...], Step]]] = {
    PRIMES_TASK: (
        (lambda _: _SIEVE,),
        lambda outputs: "The first 50 primes: " + " ".join(str(n) for n in primes_in(outputs[-1])),
    ),
    REPORT_TASK: (
        (
            lambda _: "pdftotext -layout report.pdf report.txt && wc report.txt",
            lambda _: "grep -E '^ *(Chapter|Finding:)' report.txt",
            _write_summary,
        ),
        lambda outputs: f"The summary is in summary.md ({outputs[-1].strip()}).",
    ),
}


def _asked_last(messages: Sequence[Mapping[str, Any]]) -> tuple[str, int] | None:
    """The task that was asked for last, and where: a conversation may go on with another one."""
    for at in range(len(messages) - 1, -1, -1):
        text = "\n".join(_texts(messages[at : at + 1]))
        for task in _TASKS:
            if task in text:
                return task, at
    return None


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What people wrote, without what tools printed."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            found.append(content)
        elif isinstance(content, list):
            found += [str(block.get("text", "")) for block in content if block.get("type") == "text"]
    return found


def _outputs(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each tool printed, in order."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") != "tool_result":
                continue
            inner = block.get("content", "")
            if isinstance(inner, list):
                inner = "\n".join(str(part.get("text", "")) for part in inner)
            found.append(str(inner))
    return found
