"""An act: a client that knows of no proxy, on a network whose only way out is a redirect to the daemon.

The network is the demo's own (namespaces, a veth pair, nftables or iptables); where they cannot be had the
act says so, and the demo goes on.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from coatcheck.decision.synthetic import synthetic
from coatcheck.redirect.applying import SEARCH_PATH, Tool
from demo.gate import RESOLVER, SECONDS
from demo.report import Report
from demo.stage import Stage
from demo.upstreams.seen import fingerprint
from demo.zero_secrets import needles, search_bytes

PROGRAM = Path(__file__).parent / "inside" / "no_proxy.py"
SAY = "which coat is mine?"
ALLOWED, ELSEWHERE = "api.openai.com", "attacker.example"
ANYWHERE = "192.0.2.1"
REACH = (("tcp", ANYWHERE, 22), ("udp", ANYWHERE, 443), ("tcp", ANYWHERE, 8080))
_PROBE_SECONDS = 10.0
_USER = ("--user", "--map-root-user")


@dataclass(frozen=True, slots=True)
class Means:
    """What this machine gives for it."""

    namespaces: tuple[str, ...]
    """The words that start a program as root of namespaces of its own."""
    tool: Tool


def means() -> Means | str:
    """Tried, not guessed; or why it cannot be had."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return "unshare is missing (apt-get install util-linux)"
    for command, package in (("ip", "iproute2"), ("nsenter", "util-linux"), ("setpriv", "util-linux")):
        if shutil.which(command, path=SEARCH_PATH) is None:
            return f"{command} is missing (apt-get install {package})"
    words = (unshare, *_USER, "--net", "--mount")
    failed = fails((*words, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"))
    if failed is not None:
        return f"the kernel gives no network namespaces here ({failed})"
    failures = []
    for tool, command in ((Tool.NFT, "nft list ruleset"), (Tool.IPTABLES, "iptables-save")):
        failed = fails((*words, *command.split()))
        if failed is None:
            return Means(words, tool)
        failures.append(failed)
    return f"neither nftables nor iptables can be used here ({'; '.join(failures)})"


def fails(command: tuple[str, ...]) -> str | None:
    """Why it fails; None when it does not."""
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, env={"PATH": SEARCH_PATH}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return (ran.stderr.strip().splitlines() or ["no reason given"])[-1] if ran.returncode else None


async def show_transparent(report: Report, stage: Stage, isolation: str) -> None:
    """The act. What differs is for the report."""
    report.headline("Transparent: a client that knows of no proxy, behind a firewall redirect")
    found = await asyncio.to_thread(means)
    if isinstance(found, str):
        report.field("not shown", found)
        return
    before = len(stage.seen)
    session = await stage.daemon.open_whole_sandbox("agent-without-proxy", isolation)
    asked = {
        "tool": found.tool,
        "transparent": str(session.transparent),
        "dns": str(session.dns),
        "environment": session.environment,
        "program": str(PROGRAM),
        "scratch": str(stage.state.parent),
        "given": {"say": SAY, "host": ALLOWED, "elsewhere": ELSEWHERE, "reach": REACH},
    }
    said = await _perform(found, asked)
    if "cannot" in said:
        report.field("not shown", str(said["cannot"]))
        return
    _show(report, stage, said["said"], session.handle, before, found.tool)


async def _perform(found: Means, asked: object) -> dict[str, Any]:
    """What the gate said. It ends with this process at the latest."""
    process = await asyncio.create_subprocess_exec(
        *(
            *found.namespaces,
            "setpriv",
            "--pdeathsig=KILL",
            "--",
            sys.executable,
            "-m",
            "demo.gate",
        ),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the demo
        limit=4 << 20,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        async with asyncio.timeout(2 * SECONDS):
            line = await process.stdout.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
            errors = (await process.stderr.read(4096)).decode(errors="replace").strip()
            return {"cannot": f"the gate ended: {errors[-300:]}"}
    except TimeoutError:
        return {"cannot": f"the gate said nothing for {2 * SECONDS:g} seconds"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _show(report: Report, stage: Stage, said: dict[str, Any], handle: str, before: int, tool: Tool) -> None:
    made, seen = synthetic(ALLOWED), stage.seen[before:]
    report.field(
        "network",
        f"a namespace of its own, a veth pair, {tool} rules by `coatcheck redirect`; default route and "
        f"resolver ({RESOLVER}) as anywhere",
    )
    report.field("client", f"Python's urllib; proxy variables: {', '.join(said['variables']) or 'none'}")
    report.check(said["variables"] == [], "the client knows of no proxy")
    report.field("DNS", f"{ALLOWED} is {said['address']}, a synthetic address: nobody was asked")
    report.check(
        made is not None and ip_address(said["address"]) == made.ipv4,
        "DNS was answered with the synthetic address",
    )
    served, elsewhere = said["served"], said["elsewhere"]
    report.field(
        "allowed",
        f"POST https://{ALLOWED} with handle {said['sent']}: {served['status']}; the upstream saw secret "
        f"{seen[-1].fingerprint if seen else '-'}{', genuine' if seen and seen[-1].genuine else ''}",
    )
    report.check(served["status"] == 200 and SAY in served["body"], "the client got its answer")
    report.check(said["sent"] == fingerprint(handle), "the client sent its handle")
    report.check([one.genuine for one in seen] == ["openai"], "one request arrived, with the real secret")
    report.field("elsewhere", f"https://{ELSEWHERE}: {elsewhere['status']} {elsewhere['reason']}")
    report.check(elsewhere["reason"] == "host_not_allowed", "another host is refused, and says why")
    for (protocol, address, port), came in zip(REACH, said["reached"], strict=True):
        report.field("past it", f"{protocol} {address}:{port}: {came}")
        report.check(came != "answered", f"{protocol} {address}:{port} cannot be reached")
    leaked = search_bytes(json.dumps(said).encode(), needles(stage.keys)).hits
    report.check(not any(leaked.values()), "no secret in what the client said")
