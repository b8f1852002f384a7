"""Network namespaces for the tests: a sandbox, its host, and an internet that tells what reached it.

    box (10.77.0.2, fd77::2) -- agent0 [host] uplink0 -- (8.8.8.8, 203.0.113.10, 2001:db8:a::10) [internet]

The host forwards. Nothing of this machine's own network is touched, and all of it ends with the process that
holds it: a namespace lives in a child that waits for the end of its standard input.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coatcheck.redirect.applying import Tool, apply, remove
from coatcheck.redirect.plan import Place, Plan
from tests import debian

BOX, BOX6 = "10.77.0.2", "fd77::2"
HOST, HOST6 = "10.77.0.1", "fd77::1"
INTERNET, INTERNET6 = "203.0.113.10", "2001:db8:a::10"
RESOLVER = "8.8.8.8"
"""Everybody's; here an address of the internet's namespace."""
INTERFACE = "agent0"
PORT, DNS_PORT, CONTROL_PORT = 8443, 8053, 9900
PROXY_UID = 990
"""With placement inside: no such user need exist."""
AGENT_UID = 1000
PROGRAMS = Path(__file__).parent / "inside"
SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace, held by a process."""

    holder: subprocess.Popen[bytes] = field(repr=False)

    @property
    def pid(self) -> int:
        return self.holder.pid

    def command(self, *words: str | Path) -> list[str]:
        """What runs `words` in here."""
        return ["nsenter", f"--target={self.pid}", "--net", "--", *map(str, words)]

    def run(
        self, *words: str | Path, check: bool = True, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            self.command(*words), input=stdin, capture_output=True, text=True, timeout=SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", **env},
        )  # fmt: skip
        assert not check or ran.returncode == 0, f"{words}: {ran.stderr}{ran.stdout}"
        return ran

    def ip(self, *lines: str) -> None:
        """`ip` commands, in one run."""
        self.run("ip", "-batch", "-", stdin="\n".join(lines))

    def sysctl(self, name: str, value: int) -> None:
        path = f"/proc/sys/net/{name.replace('.', '/')}"
        self.run("sh", "-c", f"echo {value} > {path}")

    def do[T](self, what: Callable[[], T]) -> T:
        """Call `what` in this namespace: a namespace belongs to a thread, whose children inherit it."""

        def inside() -> T:
            with open(f"/proc/{self.pid}/ns/net", "rb") as there:
                os.setns(there.fileno(), os.CLONE_NEWNET)
            return what()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(inside).result(SECONDS)

    def apply(self, plan: Plan, tool: Tool) -> None:
        self.do(lambda: apply(plan, tool))

    def remove(self, place: Place) -> bool:
        return self.do(lambda: remove(place))


@contextmanager
def namespace() -> Iterator[Namespace]:
    """A new one, with loopback up."""
    debian.need("ip", "nft", "iptables")
    # cat ends when this process does, however it ends, and the namespace with it.
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        ours = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + SECONDS
        while os.readlink(f"/proc/{holder.pid}/ns/net") == ours:
            assert time.monotonic() < deadline and holder.poll() is None, "no network namespaces here"
            time.sleep(0.005)
        made = Namespace(holder)
        made.ip("link set dev lo up")
        made.sysctl("ipv6.conf.default.accept_dad", 0)  # a second for each address
        yield made
    finally:
        holder.kill()
        holder.communicate()


def cable(one: Namespace, name: str, other: Namespace, other_name: str, *addresses: tuple[str, str]) -> None:
    """A veth pair between two namespaces; `addresses` of each end, with prefixes."""
    one.ip(f"link add {name} type veth peer name {other_name} netns {other.pid}")
    for end, link, own in ((one, name, 0), (other, other_name, 1)):
        end.ip(
            *(f"addr add {pair[own]} dev {link}{' nodad' if ':' in pair[own] else ''}" for pair in addresses),
            f"link set dev {link} up",
        )


@dataclass(frozen=True, slots=True)
class Server:
    """A stand-in that says on its standard output what reached it."""

    process: subprocess.Popen[str] = field(repr=False)
    heard: list[str]
    """Lines so far: `tcp 443 10.77.0.2`, …; see inside/internet.py."""

    def read(self) -> list[str]:
        """What it has heard up to now, and forgets it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline().strip()) != "--":
            assert line, "the server ended"
            lines.append(line)
        return lines


@contextmanager
def serving(where: Namespace, *words: str, uid: int | None = None) -> Iterator[Server]:
    """inside/internet.py in a namespace, once it listens. `words`: what it listens to, as `tcp/443`."""
    process = subprocess.Popen(
        where.command(sys.executable, "-I", PROGRAMS / "internet.py", *_become(uid), *words),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(process, [])
    finally:
        process.kill()
        process.communicate()


def _become(uid: int | None) -> tuple[str, ...]:
    """The programs change their user themselves: this interpreter may be where no other user can read."""
    return () if uid is None else (f"uid={uid}",)


@dataclass(frozen=True, slots=True)
class World:
    box: Namespace
    host: Namespace
    internet: Server
    services: Server
    """The host's own services, and the stand-ins for listener and resolver."""

    def attempts(self, *what: str, uid: int | None = None) -> dict[str, str]:
        """Each `attempts.py` line tried in the box -> what came of it."""
        ran = self.box.run(sys.executable, "-I", PROGRAMS / "attempts.py", *_become(uid), *what)
        return dict(line.split(" = ", 1) for line in ran.stdout.splitlines())


STAND_IN = (f"tcp/{PORT}", f"tcp/{DNS_PORT}", f"udp/{DNS_PORT}")
OUTSIDE = ("tcp/80", "tcp/443", "tcp/8080", "udp/53", "tcp/53", "udp/443", "udp/9999")


@contextmanager
def world(*listener: str) -> Iterator[World]:
    """Three namespaces; the sandbox has a default route through its host, which forwards, and no rules.

    `listener`: what the stand-in for listener and resolver listens to, besides the host's own services.
    """
    with ExitStack() as stack:
        box, host, net = (stack.enter_context(namespace()) for _ in range(3))
        cable(host, INTERFACE, box, "eth0", (f"{HOST}/24", f"{BOX}/24"), (f"{HOST6}/64", f"{BOX6}/64"))
        cable(host, "uplink0", net, "eth0", ("192.0.2.1/24", "192.0.2.2/24"), ("fd78::1/64", "fd78::2/64"))
        net.ip(
            *(f"addr add {each} dev lo" for each in (f"{INTERNET}/32", f"{RESOLVER}/32", f"{INTERNET6}/128")),
            "route add default via 192.0.2.1",
            "route add ::/0 via fd78::1",
        )
        host.ip("route add default via 192.0.2.2", "route add ::/0 via fd78::2")
        box.ip(f"route add default via {HOST}", f"route add ::/0 via {HOST6}")
        host.sysctl("ipv4.ip_forward", 1)
        host.sysctl("ipv6.conf.all.forwarding", 1)
        internet = stack.enter_context(serving(net, *OUTSIDE))
        services = stack.enter_context(serving(host, f"tcp/{CONTROL_PORT}", "udp/5000", *listener))
        yield World(box, host, internet, services)


def rules_of(where: Namespace) -> Sequence[str]:
    """Everything that `redirect` could have left: nft, both iptables, routing rules and the extra table."""
    lines: list[str] = []
    for command in (
        "nft list ruleset inet",
        "iptables-save",
        "ip6tables-save",
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
    ):
        said = where.run(*command.split()).stdout.splitlines()
        lines += [
            line.strip()
            for line in said
            if "coatcheck" in line.lower() or "10443" in line or line.startswith(("900:", "901:"))
        ]
    return lines
