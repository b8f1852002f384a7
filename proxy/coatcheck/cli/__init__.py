"""The command: parse, call one function, print. One file a group of commands.

May import: kubernetes, local, doctor, daemon, fleet, inspection, durable, images, policy, injectors, secrets,
certificates, telemetry, client, settings, redirect, platform, decision.

Nothing heavy is imported at the top of any file here, and of the files only those that the typed command
needs: a person who asks for help must not wait for mitmproxy, nor `session list` for the parts of `sandbox`.
"""

import os
import sys
from pathlib import Path
from typing import Final

HELP: Final = Path(__file__).with_name("help.txt")
"""What `coatcheck --help` prints; scripts/reference writes it from the commands. To make it anew for each
person who asks would mean to import and inspect all of them."""


def main() -> None:
    """The entry point: never returns."""
    sys.exit(run_command_line(sys.argv[1:]))


def run_command_line(arguments: list[str]) -> int:
    """One command, with its errors told; the exit code."""
    if arguments in (["--help"], ["-h"]):
        try:
            sys.stdout.write(HELP.read_text(encoding="utf-8"))
            sys.stdout.flush()
        except BrokenPipeError:  # head has read enough; what is buffered must not be tried again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return 0
    from coatcheck.cli.commands import run

    return run(arguments)
