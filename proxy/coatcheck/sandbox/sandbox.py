"""The words of a sandbox: what it is made of, its states, why it ended, why it cannot be had or used."""

from enum import StrEnum
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Final

from coatcheck.platform.errors import CoatcheckError

AGENT = "agent"
"""The identity that every sandbox has: the harness, or whatever is run without another being named."""
IDENTITIES = (AGENT, "tool")
"""What an image has users for (uid 1000 and up, in this order). Each has its own session."""


def trust_inside(identity: str) -> tuple[PurePosixPath, PurePosixPath, PurePosixPath]:
    """Where an identity's CA, bundle and Java trust store are in the guest: on a tmpfs, so that no disk, and
    no snapshot of one, holds them."""
    place = PurePosixPath("/run/coatcheck/trust", identity)
    return place / "coatcheck-ca.pem", place / "ca-bundle.pem", place / "truststore.p12"


class Backend(StrEnum):
    """What a sandbox is made of."""

    MICROVM = "microvm"
    GVISOR = "gvisor"
    NAMESPACE = "namespace"


class SandboxState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    SLEEPING = "sleeping"
    """Saved to disk: no machine runs, and it takes no memory. It wakes as it was."""
    ENDING = "ending"
    """Its sessions are over; processes and files are being removed."""
    ENDED = "ended"
    """Nothing of it is left."""


class Ending(StrEnum):
    """Why a sandbox ended."""

    KILLED = "killed"
    """A caller ended it."""
    IDLE = "idle"
    """Nobody was connected to it for as long as it was asked to wait."""
    TIME_LIMIT = "time_limit"
    SESSION_OVER = "session_over"
    """A session of it was revoked, lapsed, expired, or its opener's grant no longer covers it."""
    DAEMON_GONE = "daemon_gone"
    """No daemon answered for longer than a lease."""
    MACHINE_ENDED = "machine_ended"
    """The guest powered off, or its machine crashed or was killed."""
    GUEST_BROKE_PROTOCOL = "guest_broke_protocol"
    START_FAILED = "start_failed"
    REBIND_FAILED = "rebind_failed"
    """A copy of a saved sandbox did not get its own identity, and never ran."""
    SUPERVISOR_GONE = "supervisor_gone"
    """Its supervisor was killed, crashed or failed; what was left has been swept."""
    RESTORED = "restored"
    """An earlier state of it takes its place."""
    CRASH_LOOP = "crash_loop"
    """It died repeatedly, and is not restored automatically any more."""


class SandboxProblem(StrEnum):
    """Why a sandbox cannot be had or used."""

    UNKNOWN_SANDBOX = "unknown_sandbox"
    UNKNOWN_SNAPSHOT = "unknown_snapshot"
    SANDBOX_ENDED = "sandbox_ended"
    UNKNOWN_IMAGE = "unknown_image"
    NO_BACKEND = "no_backend"
    """This machine cannot run what was asked for: no QEMU, no bubblewrap, no image."""
    TOO_MANY_SANDBOXES = "too_many_sandboxes"
    BEYOND_LIMIT = "beyond_limit"
    """More memory, disk, time … than the operator lets a sandbox have."""
    NOT_ELASTIC = "not_elastic"
    """It has one size: it was created so, or what it is made of can have no other."""
    SCALING_LOCKED = "scaling_locked"
    """Its creator lets nothing inside change its size."""
    OOM_FLOOR = "oom_floor"
    """Less memory than what is in use: its programs would be ended for it."""
    NO_ROOM = "no_room"
    """The host has promised its memory to others."""
    VOLUME_IN_USE = "volume_in_use"
    NOT_STARTED = "not_started"
    """The sandbox's supervisor could not be started, or does not answer."""
    # From inside, while it runs.
    NOT_RUNNING = "not_running"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    NO_SPACE = "no_space"
    IS_DIRECTORY = "is_directory"
    INVALID_PATH = "invalid_path"
    COMMAND_NOT_FOUND = "command_not_found"
    PORT_REFUSED = "port_refused"
    SANDBOX_BUSY = "sandbox_busy"
    FROZEN = "frozen"
    UNKNOWN_IDENTITY = "unknown_identity"
    INCOMPLETE = "incomplete"
    BAD_REQUEST = "bad_request"
    NETWORK_OPEN = "network_open"
    GUEST_FAILED = "guest_failed"
    UNSAVABLE = "unsavable"
    """This one cannot be saved: it is no microVM, or its operator keeps no snapshots."""
    NOT_SAVED = "not_saved"
    """Saving it failed; it goes on as it was."""
    NOT_WOKEN = "not_woken"
    """It sleeps on, and can be woken later."""

    @property
    def status(self) -> HTTPStatus:
        """That the control API and a supervisor answer with, and the metadata service inside."""
        return _STATUS[self]


_STATUS: Final[dict[SandboxProblem, HTTPStatus]] = {
    SandboxProblem.UNKNOWN_SANDBOX: HTTPStatus.NOT_FOUND,
    SandboxProblem.UNKNOWN_SNAPSHOT: HTTPStatus.NOT_FOUND,
    SandboxProblem.SANDBOX_ENDED: HTTPStatus.CONFLICT,
    SandboxProblem.UNKNOWN_IMAGE: HTTPStatus.NOT_FOUND,
    SandboxProblem.NO_BACKEND: HTTPStatus.CONFLICT,
    SandboxProblem.TOO_MANY_SANDBOXES: HTTPStatus.TOO_MANY_REQUESTS,
    SandboxProblem.BEYOND_LIMIT: HTTPStatus.BAD_REQUEST,
    SandboxProblem.NOT_ELASTIC: HTTPStatus.CONFLICT,
    SandboxProblem.SCALING_LOCKED: HTTPStatus.FORBIDDEN,
    SandboxProblem.OOM_FLOOR: HTTPStatus.CONFLICT,
    SandboxProblem.NO_ROOM: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.VOLUME_IN_USE: HTTPStatus.CONFLICT,
    SandboxProblem.NOT_STARTED: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.NOT_RUNNING: HTTPStatus.CONFLICT,
    SandboxProblem.FILE_NOT_FOUND: HTTPStatus.NOT_FOUND,
    SandboxProblem.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    SandboxProblem.NO_SPACE: HTTPStatus.INSUFFICIENT_STORAGE,
    SandboxProblem.IS_DIRECTORY: HTTPStatus.CONFLICT,
    SandboxProblem.INVALID_PATH: HTTPStatus.BAD_REQUEST,
    SandboxProblem.COMMAND_NOT_FOUND: HTTPStatus.NOT_FOUND,
    SandboxProblem.PORT_REFUSED: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.SANDBOX_BUSY: HTTPStatus.SERVICE_UNAVAILABLE,
    SandboxProblem.FROZEN: HTTPStatus.CONFLICT,
    SandboxProblem.UNKNOWN_IDENTITY: HTTPStatus.BAD_REQUEST,
    SandboxProblem.INCOMPLETE: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.BAD_REQUEST: HTTPStatus.BAD_REQUEST,
    SandboxProblem.NETWORK_OPEN: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.GUEST_FAILED: HTTPStatus.BAD_GATEWAY,
    SandboxProblem.UNSAVABLE: HTTPStatus.CONFLICT,
    SandboxProblem.NOT_SAVED: HTTPStatus.INSUFFICIENT_STORAGE,
    SandboxProblem.NOT_WOKEN: HTTPStatus.SERVICE_UNAVAILABLE,
}


class SandboxRefused(CoatcheckError):
    """A sandbox cannot be had or used. `hint` says what to do next."""

    def __init__(self, problem: SandboxProblem, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.problem = problem
