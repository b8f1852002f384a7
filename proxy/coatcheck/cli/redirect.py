"""`coatcheck redirect …`: lead a sandbox's connections to the daemon, and close everything else."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from coatcheck.cli.control import JsonOption, emit_json
from coatcheck.cli.errors import CommandError, ExitCode, note

if TYPE_CHECKING:
    from coatcheck.redirect.applying import Tool
    from coatcheck.redirect.plan import Place, Plan

app = typer.Typer(
    name="redirect",
    no_args_is_help=True,
    help="""Firewall rules for programs without proxy settings.

This is transparent mode; it needs root. TCP to ports 80 and 443 is redirected to the daemon's transparent
listener, and DNS to its resolver. Everything else from the sandbox is refused.

Example: coatcheck redirect apply --interface veth-agent --port 8443 --dns-port 8053""",
)

InterfaceOption = Annotated[
    list[str] | None,
    typer.Option("--interface", metavar="NAME", help="Host end of a sandbox's veth pair. Repeatable."),
]
InsideOption = Annotated[
    bool,
    typer.Option(
        "--inside", help="Use this network namespace as the sandbox: a pod with the proxy as a sidecar."
    ),
]
UidOption = Annotated[
    int | None,
    typer.Option(
        "--proxy-uid",
        metavar="UID",
        help="With --inside: the user id of the proxy, the only one that may leave.",
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        help=(
            "Port of the daemon's transparent listener. Default: COATCHECK_TRANSPARENT_PORT;"
            " the DNS port and the protected ports then also come from the daemon's settings."
        ),
    ),
]
DnsOption = Annotated[
    int | None,
    typer.Option("--dns-port", help="Port of the daemon's resolver. Without it the sandbox has no DNS."),
]
TcpOption = Annotated[
    list[int] | None,
    typer.Option("--tcp-port", metavar="PORT", help="Port to redirect. Repeatable. Default: 80 and 443."),
]
KeepOutOption = Annotated[
    list[int] | None,
    typer.Option(
        "--keep-out",
        metavar="PORT",
        help="With --inside: local port that only the proxy's user may reach. Repeatable.",
    ),
]
Ipv6Option = Annotated[str, typer.Option("--ipv6", help="IPv6 traffic: closed or redirected.")]
ToolOption = Annotated[str, typer.Option("--tool", help="Firewall tool: nft or iptables.")]


@app.command("print")
def print_rules(
    interface: InterfaceOption = None,
    inside: InsideOption = False,
    proxy_uid: UidOption = None,
    port: PortOption = None,
    dns_port: DnsOption = None,
    tcp_port: TcpOption = None,
    keep_out: KeepOutOption = None,
    ipv6: Ipv6Option = "closed",
    tool: ToolOption = "nft",
    removal: Annotated[
        bool, typer.Option("--removal", help="Print what `remove` would run instead.")
    ] = False,
) -> None:
    """Print what `apply` would run, as a shell script. Needs no root and changes nothing.

    Example: coatcheck redirect print --interface veth-agent --port 8443 --dns-port 8053 --tool iptables
    """
    from coatcheck.redirect.applying import removal_script, script

    plans = _plans(interface, inside, proxy_uid, port, dns_port, tcp_port, keep_out, ipv6)
    kind = _tool(tool)
    for plan in plans:
        typer.echo(removal_script(plan, kind) if removal else script(plan, kind), nl=False)


@app.command()
def apply(
    interface: InterfaceOption = None,
    inside: InsideOption = False,
    proxy_uid: UidOption = None,
    port: PortOption = None,
    dns_port: DnsOption = None,
    tcp_port: TcpOption = None,
    keep_out: KeepOutOption = None,
    ipv6: Ipv6Option = "closed",
    tool: ToolOption = "nft",
    as_json: JsonOption = False,
) -> None:
    """Apply the rules, replacing those for the same interface. Start the sandbox afterwards.

    Routing rules contain the sandbox even if the firewall's rules are flushed; apply them again then.

    Example: sudo coatcheck redirect apply --interface veth-agent --port 8443 --dns-port 8053
    """
    from coatcheck.redirect import applying

    plans = _plans(interface, inside, proxy_uid, port, dns_port, tcp_port, keep_out, ipv6)
    kind = _tool(tool)
    for plan in plans:
        applying.apply(plan, kind)
    if as_json:
        emit_json({"applied": [_named(plan.place) for plan in plans], "tool": kind})
    else:
        for plan in plans:
            typer.echo(f"{_named(plan.place)}: TCP {', '.join(map(str, plan.tcp_ports))} -> {plan.port}")


@app.command()
def remove(
    interface: InterfaceOption = None, inside: InsideOption = False, as_json: JsonOption = False
) -> None:
    """Remove the rules of both tools. End the sandbox first: afterwards nothing contains it.

    Example: sudo coatcheck redirect remove --interface veth-agent
    """
    from coatcheck.redirect import applying

    places = list(_places(interface, inside))
    removed = [place for place in places if applying.remove(place)]
    if as_json:
        emit_json({"removed": [_named(place) for place in removed]})
        return
    for place in places:
        if place in removed:
            typer.echo(f"{_named(place)}: removed")
        else:
            note("hint", f"{_named(place)}: no Coatcheck rule was found")


def _plans(
    interface: list[str] | None,
    inside: bool,
    proxy_uid: int | None,
    port: int | None,
    dns_port: int | None,
    tcp_port: list[int] | None,
    keep_out: list[int] | None,
    ipv6: str,
) -> list["Plan"]:
    from coatcheck.redirect.plan import WEB_PORTS, AtInterface, Inside, Ipv6

    keep_out = list(keep_out or ())
    if ipv6 not in set(Ipv6):
        raise CommandError(f"IPv6 cannot be {ipv6!r}", "write closed or redirected", ExitCode.USAGE)
    if inside == (proxy_uid is None):
        raise CommandError(
            "--inside and --proxy-uid belong together",
            "give both, or neither and --interface",
            ExitCode.USAGE,
        )
    if keep_out and not inside:
        raise CommandError(
            "--keep-out is for --inside",
            "an interface's sandbox reaches no port of this host",
            ExitCode.USAGE,
        )
    if port is None:
        from coatcheck.settings.explained import load_settings

        settings = load_settings()
        port = settings.transparent_port
        dns_port = settings.dns_port if dns_port is None else dns_port
        if inside and settings.control_port and settings.control_port not in keep_out:
            keep_out.append(settings.control_port)
    if not port:
        raise CommandError(
            "where to redirect to is not said, and the daemon's settings name no fixed port",
            "give --port, or set COATCHECK_TRANSPARENT_PORT here as for the daemon",
            ExitCode.USAGE,
        )
    ports = tuple(tcp_port or WEB_PORTS)
    made: list[Plan] = []
    for place in _places(interface, inside):
        if place is not None:
            made.append(AtInterface(place, port, dns_port, ports, Ipv6(ipv6)))
        elif proxy_uid is not None:
            made.append(Inside(proxy_uid, port, dns_port, ports, Ipv6(ipv6), tuple(keep_out)))
    return made


def _places(interface: list[str] | None, inside: bool) -> Iterator["Place"]:
    from coatcheck.redirect.plan import check_interface

    if inside == bool(interface):
        raise CommandError(
            "no interface is named" if not inside else "--inside and --interface exclude each other",
            "give --interface NAME on the host, or --inside in the sandbox's own network namespace",
            ExitCode.USAGE,
        )
    if inside:
        yield None
    for name in interface or ():
        check_interface(name)
        yield name


def _tool(word: str) -> "Tool":
    from coatcheck.redirect.applying import Tool

    if word not in set(Tool):
        raise CommandError(f"there is no tool {word!r}", "write nft or iptables", ExitCode.USAGE)
    return Tool(word)


def _named(place: "Place") -> str:
    return "this namespace" if place is None else place
