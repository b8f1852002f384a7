"""Ids that a shell completes: those of the daemon that its settings name, if it answers at once."""

from pathlib import Path
from typing import Final

SECONDS: Final = 1.0
"""A person who pressed Tab waits."""


def session_ids(incomplete: str) -> list[tuple[str, str]]:
    """Sessions that begin so, each with whose it is."""
    return _ids("sessions", incomplete)


def sandbox_ids(incomplete: str) -> list[tuple[str, str]]:
    """Sandboxes that begin so, each with whose it is."""
    return _ids("sandboxes", incomplete)


def _ids(what: str, incomplete: str) -> list[tuple[str, str]]:
    try:
        from coatcheck.client.control import ControlClient
        from coatcheck.settings.daemon import load

        client = ControlClient(socket=Path(load().control), timeout=SECONDS)
        found = client.list(status="live") if what == "sessions" else client.sandboxes()
        return [
            (each["id"], f"{each['tenant']}/{each['subject']}")
            for each in found
            if each["id"].startswith(incomplete)
        ]
    except Exception:  # noqa: BLE001 - whatever is wrong, a command line that is being typed is left alone
        return []
