"""A deepagents backend: the harness runs outside, each of its tools runs inside a sandbox.

    from coatcheck.client.frameworks.deepagents import CoatcheckBackend
    from coatcheck.client.sandbox.blocking import BlockingClient

    with BlockingClient(socket) as client, client.create(tenant=…, subject=…, policy=…) as sandbox:
        agent = create_deep_agent(model=…, backend=CoatcheckBackend(sandbox))

`BaseSandbox` derives reading, writing, searching and the rest from these four.
"""

from pathlib import PurePosixPath
from typing import Final, override

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from coatcheck.client.control import ControlError
from coatcheck.client.sandbox.blocking import BlockingSandbox

TIMEOUT_SECONDS: Final = 30 * 60
"""For a command that the harness gives no time limit: as deepagents' own backends."""
OUTPUT_BYTES: Final = 1024 * 1024
"""Of one command: it goes into a model's context, where a megabyte is too much already."""


class CoatcheckBackend(BaseSandbox):
    """Runs everything as `identity` of one sandbox; the sandbox is its maker's to end."""

    def __init__(self, sandbox: BlockingSandbox, *, identity: str | None = None) -> None:
        self._sandbox = sandbox
        self._identity = identity
        self._home = PurePosixPath("/home", identity or "agent")

    @property
    @override
    def id(self) -> str:
        return self._sandbox.id

    @override
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """By the sandbox's `sh`. A limit that ended it is told in the output, with what would raise it."""
        done = self._sandbox.run(
            ["sh", "-c", command],
            timeout=float(timeout or TIMEOUT_SECONDS),
            output_bytes=OUTPUT_BYTES,
            identity=self._identity,
        )
        output = (done.stdout + done.stderr).decode(errors="replace")
        ended = done.ended
        if ended.limit is not None:
            output += f"\n[{ended.message} {ended.hint}]".replace(" ]", "]")
        return ExecuteResponse(output, ended.exit_code, truncated=ended.limit == "output")

    @override
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for path, content in files:
            try:
                self._sandbox.write_file(self._absolute(path), content, identity=self._identity)
                answers.append(FileUploadResponse(path))
            except ControlError as error:
                answers.append(FileUploadResponse(path, _word(error)))
        return answers

    @override
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        for path in paths:
            try:
                content = self._sandbox.read_file(self._absolute(path), self._identity)
                answers.append(FileDownloadResponse(path, content))
            except ControlError as error:
                answers.append(FileDownloadResponse(path, error=_word(error)))
        return answers

    def _absolute(self, path: str) -> str:
        """Where `execute` runs, models think themselves when they leave the directory out."""
        return str(self._home / path)


_WORDS: Final = frozenset({"file_not_found", "permission_denied", "is_directory", "invalid_path"})


def _word(error: ControlError) -> str:
    """deepagents' own word for what a model can mend; for the rest, ours with what to do."""
    return error.reason if error.reason in _WORDS else f"{error.message}. {error.hint}".strip()
