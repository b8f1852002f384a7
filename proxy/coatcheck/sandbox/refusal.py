"""What a guest's agent refused, and what we refuse before asking it, in words of ours.

A guest's own words are never passed on: they could be anything, on somebody's terminal.
"""

from typing import Any, Final

from coatcheck.sandbox.sandbox import SandboxProblem as Problem
from coatcheck.sandbox.sandbox import SandboxRefused

_OF_AGENT: Final[dict[str, Problem]] = {
    "file_not_found": Problem.FILE_NOT_FOUND,
    "permission_denied": Problem.PERMISSION_DENIED,
    "no_space": Problem.NO_SPACE,
    "is_directory": Problem.IS_DIRECTORY,
    "invalid_path": Problem.INVALID_PATH,
    "not_found": Problem.COMMAND_NOT_FOUND,
    "refused": Problem.PORT_REFUSED,
    "busy": Problem.SANDBOX_BUSY,
    "frozen": Problem.FROZEN,
    "unknown_identity": Problem.UNKNOWN_IDENTITY,
    "network_open": Problem.NETWORK_OPEN,
}
"""RESET reasons of the guest protocol; any other is a failure of the agent."""

WORDS: Final[dict[Problem, tuple[str, str]]] = {
    Problem.FILE_NOT_FOUND: ("there is no such file in the sandbox", "Check the path."),
    Problem.PERMISSION_DENIED: (
        "this user of the sandbox may not do that",
        "Use a place of its own, such as its home directory.",
    ),
    Problem.NO_SPACE: (
        "the sandbox's disk is full",
        "Remove files in it, or ask for more with --disk (disk_mib) next time.",
    ),
    Problem.IS_DIRECTORY: ("this is a directory", "Name a file in it; a directory goes through tar(1)."),
    Problem.INVALID_PATH: ("this is not a file path in the sandbox", "Give an absolute path."),
    Problem.COMMAND_NOT_FOUND: ("there is no such command in the sandbox", "Check its name, or install it."),
    Problem.PORT_REFUSED: (
        "nothing listens on this port in the sandbox, or it speaks no HTTP",
        "Start what should listen on its loopback, then ask again.",
    ),
    Problem.SANDBOX_BUSY: ("too much is running in the sandbox at once", "Wait until some of it has ended."),
    Problem.FROZEN: ("the sandbox is frozen", "Resume it first."),
    Problem.UNKNOWN_IDENTITY: (
        "the sandbox has no such identity",
        "Leave identity out, or ask for it when the sandbox is created.",
    ),
    Problem.INCOMPLETE: ("the file did not arrive whole", "Send it again; what was there is untouched."),
    Problem.NETWORK_OPEN: (
        "the sandbox's network could not be closed, so nothing is run in it",
        "See the daemon's log.",
    ),
    Problem.NOT_RUNNING: ("the sandbox is not running", "See `coatcheck sandbox show`."),
    Problem.GUEST_FAILED: ("the sandbox's agent could not do it", "See the daemon's log."),
    Problem.BAD_REQUEST: ("this cannot be read", "See docs/control-api.md."),
    Problem.UNSAVABLE: (
        "this sandbox cannot be saved",
        "Run it as a microVM; a namespace of the host's own kernel cannot be copied.",
    ),
    Problem.NOT_SAVED: (
        "the sandbox could not be saved, and continues as before",
        "Make room, and try again.",
    ),
    Problem.NOT_WOKEN: ("the sandbox could not be woken, and sleeps on", "Try again when the host has room."),
}


def refuse(problem: Problem, detail: str = "", hint: str = "") -> SandboxRefused:
    """The same to be raised. `hint`: instead of the usual one."""
    message, usual = WORDS[problem]
    return SandboxRefused(problem, f"{message}: {detail}" if detail else message, hint or usual)


def of_agent(reason: str) -> Problem:
    """What a RESET of the guest's agent means."""
    return _OF_AGENT.get(reason, Problem.GUEST_FAILED)


def refusal(problem: Problem, detail: str = "") -> dict[str, Any]:
    """`{"error": …}` as the control API answers it. `detail`: of ours, said after the message."""
    message, hint = WORDS[problem]
    return {
        "error": {"reason": problem, "message": f"{message}: {detail}" if detail else message, "hint": hint}
    }
