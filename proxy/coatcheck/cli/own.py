"""A daemon for one command, where none is running: its policy, its secrets, and nothing left of it."""

import getpass
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coatcheck.cli.daemon import configure_log
from coatcheck.cli.errors import CommandError, ExitCode, note

if TYPE_CHECKING:
    from coatcheck.decision.policy import Policy

MOST_SECRET_BYTES = 65_536
"""As much as a secret's file may hold (`secrets.file`)."""


@dataclass(frozen=True, slots=True)
class Own:
    """A daemon that answers for as long as the block lasts."""

    control: Path
    """Its socket."""
    policy: "Policy"
    umask: int
    """The user's; the daemon has its own."""


@asynccontextmanager
async def own_daemon_for(
    policy: Path | None, secrets: Mapping[str, str], state_dir: Path | None, *, needs_secrets: bool
) -> AsyncIterator[Own]:
    """`policy`: a file; default: the sample. `secrets`: credential -> value. `needs_secrets`: refuse to begin
    where there is nowhere to take one from."""
    from coatcheck.local.in_process import own_daemon, private_directory, with_given
    from coatcheck.local.kept_logs import keep_log
    from coatcheck.policy.checking import load_file
    from coatcheck.policy.shipped import POLICY
    from coatcheck.secrets.configured import make_stores
    from coatcheck.settings.explained import load_settings

    configure_log("human", "error")  # what a daemon warns of is not about this command
    file = policy or POLICY
    loaded = load_file(file)
    with private_directory(state_dir) as directory:
        state = directory if state_dir is not None else directory / "state"
        settings = load_settings(
            state_dir=state,
            runtime_dir=state / "run",
            control_socket=state / "run/c.sock",
            policy=file,
            drain_seconds=0.0,
            sandbox_sleep_seconds=0.0,
        )
        try:
            made = make_stores(settings)
        except ValueError as problem:
            raise CommandError(str(problem), "see coatcheck serve --settings", ExitCode.USAGE) from None
        stores = with_given(made, {loaded.name: loaded}, secrets)
        if not stores and needs_secrets:
            raise CommandError(
                "no daemon answers, and no source of secrets is configured",
                "start one (coatcheck serve, coatcheck dev), or give --secret openai=-, "
                "COATCHECK_VAULT_URL or COATCHECK_SECRETS_DIR",
            )
        umask = os.umask(0o077)  # the daemon sets this for itself, the command gets the user's own
        try:
            async with own_daemon(settings, stores):
                yield Own(settings.control, loaded, umask)
        finally:
            if state_dir is None and (kept := keep_log(state)) is not None:
                note("note", f"the audit log is kept: coatcheck audit tail {kept}")


def secret(text: str) -> tuple[str, str]:
    """`CREDENTIAL=FILE`, or `CREDENTIAL=-` to type or pipe it in: the credential and its value."""
    name, equals, source = text.partition("=")
    if not equals or not name or not source:
        raise CommandError(
            f"--secret {name}: it names no file",
            "write --secret openai=FILE, or openai=- to type it in",
            ExitCode.USAGE,
        )
    if source == "-":
        value = (
            getpass.getpass(f"secret for {name}: ")
            if sys.stdin.isatty()
            else sys.stdin.read(MOST_SECRET_BYTES)
        )
    else:
        try:
            with open(source) as file:
                value = file.read(MOST_SECRET_BYTES)
        except (OSError, ValueError) as problem:  # what stands there may be the secret: it is not repeated
            why = getattr(problem, "strerror", None) or "it is not UTF-8 text"
            raise CommandError(
                f"--secret {name}: the file cannot be read: {why}",
                f"write --secret {name}=FILE, or {name}=- to type it in; a secret itself has no place on a"
                " command line, where others can read it",
                ExitCode.USAGE,
            ) from None
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise CommandError(f"the secret for {name} is empty", "type or pipe it in, or name its file")
    return name, value
