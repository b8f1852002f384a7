"""claude-agent-sdk drives an agent program that lives inside a sandbox, over the sandbox's exec stream.

    cli = command_file(Path("claude-inside"), sandbox.id, "/opt/agent/claude", socket=socket)
    async for message in query(prompt=…, options=ClaudeAgentOptions(cli_path=cli, …)):

The SDK starts the program that `cli_path` names and talks to it by its standard streams: the file made here
starts it in the sandbox instead. The SDK itself is used as it is, and not needed to make the file.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path


def command_file(
    path: Path,
    sandbox: str,
    program: str,
    *,
    socket: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Write `path`, an executable file that runs `program` in the sandbox with whatever arguments it gets.

    `socket`: the daemon's, if not the one that settings name. `environment`: for the program, no secret.
    """
    words = [sys.executable, "-m", "coatcheck", "sandbox", "exec", "--no-tty"]
    words += ["--socket", str(socket)] if socket is not None else []
    for name, value in (environment or {}).items():
        words += ["--env", f"{name}={value}"]
    words += [sandbox, "--", program]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o700)
    return path
