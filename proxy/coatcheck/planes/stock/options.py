"""The compatibility mode's terms: the options it demands of a stock mitmdump, and what it cannot promise."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Term:
    """An option, what it must be, and why."""

    option: str
    wanted: str
    """As `--set` takes it; empty: leave it alone."""
    holds: Callable[[Any], bool]
    why: str


def _is(value: object) -> Callable[[Any], bool]:
    return lambda found: found == value


def _empty(found: object) -> bool:
    return not found


_RECORDS = "it would keep requests with the secrets in them"
_REWRITES = "it would change requests after they were judged"
_RAW = "its bytes would pass without any check"

_UNLIKE_DEFAULTS = (
    Term("connection_strategy", "lazy", _is("lazy"), "eager connects before policy was asked"),
    Term("rawtcp", "false", _is(False), _RAW),
    Term("upstream_cert", "false", _is(False), "it copies wildcard names into leaves"),
    Term("http2", "false", _is(False), "the client's offer would choose the upstream's protocol"),
    Term("http3", "false", _is(False), "QUIC passes other checks than these"),
    Term("onboarding", "false", _is(False), "it answers for a host that no policy names"),
)
TERMS = (
    *_UNLIKE_DEFAULTS,
    Term("ssl_insecure", "false", _is(False), "secrets would go to unverified upstreams"),
    Term("validate_inbound_headers", "true", _is(True), "smuggled requests would pass unseen"),
    Term("store_streamed_bodies", "false", _is(False), _RECORDS),
    Term("add_upstream_certs_to_client_chain", "false", _is(False), "one leaf, one name"),
    Term("proxy_debug", "false", _is(False), "it logs what peers send"),
    Term("flow_detail", "1", lambda found: found <= 1, "it prints headers"),
    Term("termlog_verbosity", "info", lambda found: found != "debug", "it logs what peers send"),
    Term("mode", "regular", lambda found: all(_regular(mode) for mode in found), "other modes are not read"),
    Term("stream_large_bodies", "", _empty, "a streamed request leaves before it is judged"),
    Term("body_size_limit", "", _empty, "it refuses streams by their length"),
    Term("save_stream_file", "", _empty, _RECORDS),
    Term("hardump", "", _empty, _RECORDS),
    Term("ignore_hosts", "", _empty, _RAW),
    Term("allow_hosts", "", _empty, "all other hosts would pass without any check"),
    Term("tcp_hosts", "", _empty, _RAW),
    Term("udp_hosts", "", _empty, _RAW),
    Term("modify_headers", "", _empty, _REWRITES),
    Term("modify_body", "", _empty, _REWRITES),
    Term("map_remote", "", _empty, _REWRITES),
    Term("map_local", "", _empty, _REWRITES),
    Term("stickyauth", "", _empty, "it sends one client's credentials for another"),
    Term("stickycookie", "", _empty, "it sends one client's cookies for another"),
    Term("proxyauth", "", _empty, "the proxy password is the session's"),
    Term("upstream_auth", "", _empty, _REWRITES),
    Term("client_replay", "", _empty, _REWRITES),
    Term("server_replay", "", _empty, _REWRITES),
    Term("rfile", "", _empty, _REWRITES),
)

_NOT_HELD = """
I2: mitmproxy resolves names once more. A forbidden address may see a TCP handshake, but no
    byte: the connection is then aborted.
I3: what passes before this script has loaded is not refused by it.
I4: the only origin is a proxy password (class bearer), which can be stolen together with a handle.
    Credentials whose policy does not list bearer under `origins` are refused.
I5: there is no control API: to revoke, stop mitmdump. A secret is in its request while mitmproxy
    connects; it is not put in right before the first byte.
I7: certificates are mitmproxy's (leaves share the CA's key), and so are TLS versions and ciphers.
I9: header blocks, connections, waiting requests and buffers for slow receivers have no limit of ours.
Refused, not carried: WebSocket, HTTP/2, unopened tunnels, reverse mode, bodies of unknown length that a
    credential stands in.
"""


def unmet(options: Mapping[str, Any], scripts: Sequence[str], script: Path) -> list[str]:
    """The reasons not to start, one line each. `script` is the only script there may be."""
    found = []
    for term in TERMS:
        if term.option in options and term.holds(options[term.option]):
            continue
        do = f"--set {term.option}={term.wanted}" if term.wanted else f"do not set {term.option}"
        found.append(f"{do}  ({term.why})")
    if [Path(name).expanduser().resolve() for name in scripts] != [script]:
        found.append("load no other script  (it could read secrets, or undo a refusal)")
    return found


def command_line(script: Path) -> str:
    """What to paste: all the options that differ from mitmdump's defaults."""
    options = [f"--set {term.option}={term.wanted}" for term in _UNLIKE_DEFAULTS]
    start = f"mitmdump --listen-host 127.0.0.1 -s {shlex.quote(str(script))}"
    return " ".join([start, *options, "--set coatcheck_policy=POLICY.yaml"])


def refuse_to_start(problems: Sequence[str], script: Path) -> None:
    """Say why, and what to do, and end mitmdump."""
    listed = "".join(f"  - {problem}\n" for problem in problems)
    sys.stderr.write(
        f"error: coatcheck does not run in this mitmdump:\n{listed}"
        f"hint: start it as\n  {command_line(script)}\n"
        "  or use `coatcheck serve`, which keeps all of its promises.\n"
    )
    sys.stderr.flush()
    sys.exit(1)


def notice(*, injects: bool) -> str:
    """What a person must know before relying on this."""
    what = "credentials are injected, as coatcheck_accept_reduced is set."
    if not injects:
        what = "nothing is injected. To inject all the same: --set coatcheck_accept_reduced=true"
    return (
        "coatcheck: compatibility mode in a stock mitmdump. Not held here, but by `coatcheck serve`:"
        f"{_NOT_HELD}coatcheck: {what}\n"
    )


def _regular(mode: str) -> bool:
    return mode == "regular" or mode.startswith("regular@")
