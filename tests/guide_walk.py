"""Walks a guide as its reader would: its blocks, in order, in one shell, in an empty directory.

The word behind a block's language says what its reader does with it; a `text` block below it is what it
answers, where a line `…` stands for any number of lines:

    ```sh run               types it into the first terminal; `exits 1` after it: and it fails as it should
    ```sh daemon            types it into a second terminal, and leaves it running
    ```yaml file:PATH       writes it with an editor
    ```diff change:PATH     changes that file: lines with `-` become those with `+`, else they come last
"""

import re
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(
    r"^```\w+ (?P<what>run|daemon|file|change)(?::(?P<path>\S+))?(?: exits (?P<code>\d+))?\n"
    r"(?P<text>.*?)^```\n(?:```text\n(?P<shown>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
END = "\x1e"


@dataclass(frozen=True, slots=True)
class Block:
    """One thing that the reader does."""

    what: str
    path: str
    text: str
    code: int
    shown: str
    """What the guide says that it answers."""
    line: int
    """In the guide, of its first line."""


def blocks(guide: str) -> Iterator[Block]:
    """In order."""
    for found in BLOCK.finditer(guide):
        line = guide.count("\n", 0, found.start("text")) + 1
        code = int(found["code"] or 0)
        yield Block(found["what"], found["path"] or "", found["text"], code, found["shown"] or "", line)


def fits(said: list[str], shown: list[str]) -> bool:
    """Whether the lines are those that are shown, where `…` stands for any."""
    if not shown:
        return not said
    if shown[0] == "…":
        return any(fits(said[start:], shown[1:]) for start in range(len(said) + 1))
    return said[:1] == shown[:1] and fits(said[1:], shown[1:])


def type_in(block: Block, directory: Path) -> None:
    """A `file` or `change` block, as an editor leaves it."""
    path = directory / block.path
    if block.what == "file":
        path.write_text(block.text)
        return
    old = [line[1:] for line in block.text.splitlines() if line.startswith("-")]
    new = "".join(f"{line[1:]}\n" for line in block.text.splitlines() if line.startswith("+"))
    text = path.read_text()
    if not old:
        path.write_text(text + new)
        return
    before = "".join(f"{line}\n" for line in old)
    assert text.count(before) == 1, f"line {block.line}: {block.path} does not have what is changed once"
    path.write_text(text.replace(before, new))


@dataclass
class Shell:
    """A terminal. `run` returns what it answered, errors included, and the exit code."""

    directory: Path
    environment: Mapping[str, str] = field(repr=False)
    process: "subprocess.Popen[str]" = field(init=False, repr=False)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=40), repr=False)
    """Its last lines, for the reader who must find out why it ended."""

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc"], cwd=self.directory, env=dict(self.environment), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def type(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text if text.endswith("\n") else text + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """The next line of its output; AssertionError at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the shell ended; what it said last:\n{''.join(self.said)}"
        self.said.append(line)
        return line

    def run(self, text: str) -> tuple[str, int]:
        self.type(f"{text}\nprintf '\\n%b%d\\n' '\\036' $?")
        lines: list[str] = []
        while not (line := self.line()).startswith(END):
            lines.append(line)
        return "".join(lines).removesuffix("\n"), int(line.removeprefix(END))

    def close(self) -> None:
        """After what it left running has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
