"""The sixth attack: past the proxy, at the daemon itself, its OpenBao, and the control API."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from demo.attacks import Attacker, Attempt
from demo.isolation import shared_namespaces

_WIDTHS = (48, 13, 34)
_GOT = ("readable", "connected", "may signal")


async def reach(attacker: Attacker, isolated: bool) -> bool:
    """Whether nothing could be reached."""
    report, stage = attacker.report, attacker.stage
    vault = urlsplit(stage.vault.url)
    assert vault.hostname is not None and vault.port is not None
    pid, control = stage.daemon.pid, stage.daemon.control
    files = {
        f"the daemon's memory, /proc/{pid}/mem": f"/proc/{pid}/mem",
        f"its environment, /proc/{pid}/environ": f"/proc/{pid}/environ",
        "a private key in its state directory": str(_any_file(stage.state)),
        "its login to OpenBao": str(stage.state.parent / "openbao-secret-id"),
    }
    ports: dict[str, tuple[str, int]] = {
        f"OpenBao, 127.0.0.1:{vault.port}": (vault.hostname, vault.port),
        f"the upstream itself, 127.0.0.1:{stage.origin.port}": ("127.0.0.1", stage.origin.port),
    }
    if isolated:  # else it would be our machine that calls there
        ports["an address in the internet, 192.0.2.1:443"] = ("192.0.2.1", 443)
    sockets = {"the control API's socket": str(control)}
    pids = {f"the daemon's process, pid {pid}": pid}
    found: dict[str, Any] = await attacker.sandbox.run(
        "reach.py",
        {
            "read": list(files.values()),
            "tcp": list(ports.values()),
            "unix": list(sockets.values()),
            "signal": list(pids.values()),
        },
    )
    if isolated and pid in found["processes"]:
        # Numbers begin anew in there: by chance one of its own processes has the daemon's.
        found["read"][:2], found["signal"] = ["another process"] * 2, ["another process"]
    rows = [
        *zip(files, _exist(files.values()), found["read"], strict=True),
        *zip(ports, [await _open(*to) for to in ports.values()], found["tcp"], strict=True),
        *zip(sockets, [control.is_socket()], found["unix"], strict=True),
        *zip(pids, [True], found["signal"], strict=True),
    ]
    report.columns(_WIDTHS, ("TRIED FROM INSIDE", "ON THE HOST", "IN THE SANDBOX"), "bold")
    for what, there, outcome in rows:
        host = "-" if there is None else "there" if there else "MISSING"
        report.columns(_WIDTHS, (what, host, _explained(outcome)), "red" if outcome.startswith(_GOT) else "")
        # An attack on what does not exist proves nothing.
        report.check(there is not False, f"{what} is there to be attacked")
        if isolated:
            report.check(not outcome.startswith(_GOT), f"{what} cannot be reached")
    _show_view(attacker, found, isolated)
    await attacker.refused(
        [
            Attempt(
                f"asking the proxy to go there: CONNECT 127.0.0.1:{vault.port} (OpenBao)",
                {"to": f"127.0.0.1:{vault.port}", "path": "/"},
                "host_not_allowed",
            )
        ]
    )
    if isolated:
        return report.outcome("nothing of the daemon is in there")
    report.field("note", "without namespaces nothing stands between a child and its user's other processes")
    return False


def _show_view(attacker: Attacker, found: Mapping[str, Any], isolated: bool) -> None:
    report = attacker.report
    if not isolated:
        report.field("it sees", "everything that its user sees: it is not isolated")
        return
    interfaces = ", ".join(found["interfaces"])
    report.field(
        "it sees",
        f"{len(found['processes'])} processes, all its own; network interfaces: {interfaces}; "
        f"{len(found['environment'])} variables: its handles, the proxy's address, whom to trust",
    )
    report.check(interfaces == "lo", "loopback is the only network interface")
    shared = shared_namespaces(attacker.sandbox.namespaces)
    report.check(not shared, f"the sandbox has namespaces of its own, but shares {shared}")


def _exist(paths: Iterable[str]) -> list[bool]:
    return [Path(path).exists() for path in paths]


def _any_file(directory: Path) -> Path:
    return next((path for path in sorted(directory.rglob("*key*")) if path.is_file()), directory / "key")


async def _open(host: str, port: int) -> bool | None:
    """Whether the host itself gets a connection there; the internet is not asked."""
    if not host.startswith("127."):
        return None
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def _explained(outcome: str) -> str:
    known = {
        "ENOENT": "no such file",
        "ESRCH": "no such process",
        "ECONNREFUSED": "nothing listens",
        "ENETUNREACH": "no network",
    }
    return f"{known[outcome]} ({outcome})" if outcome in known else outcome
