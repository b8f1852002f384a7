"""What is let off, each by name and with its reason. Tests hold that every name is one of a place's."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.exhaustive.fail_closed.injection import Fault
from tests.exhaustive.fail_closed.judge import Outcome
from tests.exhaustive.fail_closed.sites import Site

# --- places that no ordinary request passes ---------------------------------------------------------

FLEET = "somebody's answer, at a daemon that shares its state: tests/system/fleet/test_approvals.py"
OPENING = "a listener is opened by an operator's call or at the start, before there is a request"
PRESSURE = "only under pressure from a slow receiver: tests/system/planes/test_traps_connections.py, tests/exhaustive/scale"
REFUSING = "only where something was refused or has failed already"
PARENT = "only behind a parent proxy: tests/system/planes/upstream/test_parent_proxy.py"
STORE = "beyond the cache, whose await for it fails here in every way; with a real OpenBao in tests/stores"
PLANE = "for as long as the plane runs, not for a request"
STOPPING = "when the daemon stops"
SHARED = "on shared listeners; the same `_serve` fails here on a session's own"

KEYS = "read beside the requests, which go by the keys that are known: tests/planes/origins/test_platform_keys.py"
BEFORE = "asked at the start and by commands, before there is a request: tests/system/secrets/test_usable.py"

NOT_PASSED = {
    "secrets.usable:": BEFORE,
    "planes.origins.platform_keys:KeyUrl.": KEYS,
    "request.approvals:Approvals.answer_anywhere ": FLEET,
    "planes.mitm.connection:EgressConnection.open_connection await: self._not_connected": REFUSING,
    "planes.mitm.connection:EgressConnection._not_connected await: ": REFUSING,
    "planes.mitm.connection:EgressConnection.on_timeout": "mitmproxy's own watchdog, which is above our bounds",
    "planes.mitm.connection:EgressConnection._read await: self.drain_writers()": PRESSURE,
    "planes.mitm.backpressure:Backpressure.wait_for_room await: self._progress.wait()": PRESSURE,
    "planes.mitm.connection:EgressConnection._finish_connection await: asyncio.Event().wait()": "a peer that half-closes",
    "planes.mitm.connection:ClosedLayer._handle_event": REFUSING,
    "planes.mitm.http1:BoundedHttp1Server.wait hook": "a client that sends its next request ahead",
    "planes.mitm.http1:BoundedHttp1Client._end_of_input": "an answer that its connection's end ends",
    "planes.mitm.http2:BoundedHttp2Server.protocol_error": REFUSING,
    "planes.listeners.listener:Listeners._serve await: asyncio.sleep": "past a burst of one sandbox's connections",
    "planes.listeners.listener:Listeners.open_": OPENING,
    "planes.listeners.listener:Listeners._begin ": OPENING,
    "planes.listeners.listener:Listeners._bind ": OPENING,
    "planes.mitm.session_ca:SessionCas.open ": OPENING,
    "planes.listeners.session_sockets:SessionSockets.bind ": OPENING,
    "planes.listeners.listener:Listeners._serve await: self._refuse": REFUSING,
    "planes.listeners.listener:Listeners._refuse await: ": REFUSING,
    "planes.listeners.listener:Listeners._end await: answer_and_close": REFUSING,
    "planes.sockets:answer_and_close ": REFUSING,
    "planes.mitm.plane:MitmPlane.run ": PLANE,
    "planes.upstream.parent_proxy:open_tunnel ": PARENT,
    "planes.upstream.upstream:Upstream._through ": PARENT,
    "planes.upstream.upstream:Upstream.connect value of await: self._through": PARENT,
    "planes.upstream.upstream:Upstream.addresses value of await: self._resolve": "names lead to loopback ports here",
    "planes.upstream.name_servers:": "names lead to loopback ports here",
    "planes.upstream.upstream:Upstream._resolve ": "names lead to loopback ports here",
    "planes.mitm.stream:EgressStream.handle_protocol_error": "a side that breaks off: tests/system/planes/mitm/test_stream.py",
    "secrets.cache:CachedStore.close ": STOPPING,
    "secrets.router:Stores.close ": STOPPING,
    "secrets.file:": STORE,
    "secrets.vault:": STORE,
    "secrets.vault_token:": STORE,
}
"""The awaits and hooks, by the beginnings of their names, that none of the scenarios passes."""


SOMETIMES = (
    "planes.mitm.plane:MitmPlane._sweep ",
    "planes.mitm.stream:EgressStream.state_discard",
    "planes.mitm.connection:EgressConnection.server_event await: self._take_turn(resume)",
    "planes.mitm.turns:Turns.take await: self._wait(sharer)",
    "planes.mitm.turns:Turns._wait await: turn",
)
"""Passed as the machine's speed has it: when an event's work outlasts its turn, when the second is over in
which the sweeper looks, when a refused body comes behind its head."""


WAITS_FOR_PLACES = (
    "planes.listeners.listener:Listeners._accept.accept await: ",
    "planes.listeners.listener:Listeners._serve value of await: evidence(",
    "planes.listeners.listener:Listeners._serve await: self._end(",
)
"""They wait for a coroutine whose own waits are places with bounds (`from_proxy_header`, `answer_and_close`),
and are given none of their own: these do not hang here."""
GIVES_BACK = (
    "planes.listeners.listener:Listeners._serve call: self._plane.forget",
    "request.call:Call._vacate call: self._capacity.leave",
    "request.exchange:Exchange._fetch call: self.waiting.leave",
)
"""What gives back what a request had, last and once. It leaks one place when it fails, whatever is done about
it; that it comes to it is what all other cases show."""


def not_passed(site: Site) -> str:
    """Why no scenario passes the place; empty when one should."""
    return next((why for name, why in NOT_PASSED.items() if str(site).startswith(name)), "")


# --- failures that may end otherwise ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Excuse:
    """`kinds` of outcomes are right at `place` (the beginning of a name) for `faults`."""

    place: str
    kinds: tuple[str, ...]
    why: str
    faults: Sequence[Fault] = tuple(Fault)


C = "planes.mitm.connection:EgressConnection."
L = "planes.listeners.listener:Listeners."
OVER = "the request is over: that its end could not be written down must not undo it"
INERT = "what is no handle of ours is inert text in a body"
NOBODY_WAITED = "the event loop calls it: what waits for a turn then fails, and nothing did"
WRITTEN = "what it was about has been written already"

EXCUSES = (
    Excuse(f"{C}server_event leave: self._in_order", ("complete", "silent"), WRITTEN),
    Excuse(
        f"{C}server_event enter: self._in_order", ("silent", "broken off"), "others go on", (Fault.HANGS,)
    ),
    Excuse(f"{C}server_event ", ("silent", "broken off"), "others go on; the bound ends it", (Fault.HANGS,)),
    Excuse(
        "planes.mitm.plane:MitmPlane._each call: check",
        ("silent", "broken off"),
        "the sweeper's check, on a slow machine: one that fails cuts the connection, whatever is on it",
    ),
    Excuse(
        "planes.mitm.plane:MitmPlane._check ",
        ("silent", "broken off"),
        "likewise, within it: what it takes for overdue or lapsed is cut",
    ),
    Excuse("request.call:Call._handles_in value of call: self._shared.state.genuine", ("complete",), INERT),
    Excuse(f"{L}_serve await: self._end(", ("refused",), "its one wait has a bound, in answer_and_close"),
    Excuse(
        f"{C}_dial_and_serve value of call: limit_handshake", ("complete",), "a timer that was not needed"
    ),
    Excuse(f"{C}__init__ value of call: address_of", ("complete",), "only mitmproxy's own words use it"),
    Excuse(
        f"{C}_start_hook call: self._fail_if_unfinished", ("complete",), "it looks at a task that ended well"
    ),
    Excuse(
        f"{C}_execute call: self._fail_if_unfinished", ("complete",), "it looks at a task that ended well"
    ),
    Excuse(
        "planes.mitm.outbox:Outbox.flush call: io.writer.write",
        ("silent",),
        "it is the answer's writing that fails",
    ),
    Excuse(f"{C}_execute call: self.link.outbox.put", ("silent",), "it is the answer that is lost"),
    Excuse(f"{C}server_event value of call: self.link.time_slice.take_unfinished", ("complete",), WRITTEN),
    Excuse(f"{C}_take_turn value of call: self.link.sharer", ("complete",), WRITTEN),
    Excuse("planes.mitm.turns:Turns._next_pass call: self._look", ("complete",), NOBODY_WAITED),
    Excuse("planes.mitm.turns:Turns._look call: self._give", ("complete",), NOBODY_WAITED),
    Excuse(f"{C}_read call: self._is_behind", ("complete",), WRITTEN),
    Excuse(
        f"{C}_take_turn await: ",
        ("silent", "broken off"),
        "others go on; the bound ends it",
        (Fault.HANGS,),
    ),
    Excuse(
        f"{C}server_event await: ",
        ("silent", "broken off"),
        "others go on; the bound ends it",
        (Fault.HANGS,),
    ),
    Excuse(
        f"{C}_read await: backpressure.wait_for_room",
        ("silent", "broken off"),
        "others go on; the bound ends it",
        (Fault.HANGS,),
    ),
    Excuse(
        f"{C}handle_connection hook", ("silent",), "mitmproxy calls it, and keeps what it raises to itself"
    ),
    Excuse(
        f"{C}_read value of await: reader.read",
        ("silent", "complete"),
        "an OSError is the socket's end: nobody is there; a hung one awaited the next request",
        (Fault.TIMES_OUT, Fault.HANGS),
    ),
    Excuse(f"{L}_accept.accept await: ", ("silent",), "asyncio's own call; what it waits for are places"),
    Excuse(
        f"{L}_serve value of await: evidence(", ("silent",), "its one wait has a bound, in from_proxy_header"
    ),
    Excuse(
        f"{L}_serve call: is_spare", ("silent",), "before there is a connection of ours: asyncio closes it"
    ),
    Excuse(
        f"{L}_serve await: self._end(",
        ("complete", "refused"),
        "its one wait has a bound, in answer_and_close",
    ),
    Excuse(
        "planes.mitm.tls_layers:_Frugal.tls_interact value of call: _waiting",
        ("complete",),
        "it is true or false",
    ),
    Excuse(
        "planes.mitm.tls_layers:_Frugal.receive_data value of call: _waiting",
        ("complete",),
        "it is true or false",
    ),
    Excuse(
        "request.exchange:Exchange.connect value of call: self._call",
        ("complete",),
        "an allowed tunnel needs none",
    ),
    Excuse(
        "request.exchange:Exchange._fetch value of call: self.waiting.take", ("complete",), "one more waits"
    ),
    Excuse("request.shared:Shared.tell call: self.emit", ("complete",), OVER),
    Excuse("request.call:Call.complete ", ("complete",), OVER),
    Excuse("request.call:Call._tell ", ("complete",), OVER),
    Excuse("request.call:Call._vacate ", ("complete", "broken off"), OVER),
    Excuse("request.call:Call._leave ", ("complete",), OVER),
    Excuse("request.capacity:Capacity.leave ", ("complete",), OVER),
    Excuse(
        "request.known_secrets:texts_of value of call: check_text",
        ("complete",),
        "then it is looked for all the more",
    ),
    Excuse(
        "request.exchange:Exchange._secrets value of call: self.secrets.ready",
        ("complete",),
        "what is not exactly yes is read once more",
    ),
    Excuse(
        "request.known_secrets:KnownSecrets.patterns value of call: self._patterns",
        ("complete",),
        "the first time it is only asked whether there are some; the answer asks again",
    ),
    Excuse(
        "request.call:Call._edits value of call: self._shared.secrets.patterns",
        ("complete",),
        "it is only asked whether there are some; the answer asks again",
    ),
    Excuse(
        "request.response:Answer.patterns value of call: self._known.patterns",
        ("complete",),
        "others than before: they are asked for again",
    ),
    Excuse(
        "request.response:Answer.begin value of call: message_coding",
        ("complete",),
        "only a compressed message of gRPC or Connect is read by it, and fails: this answer has none",
    ),
    Excuse(
        "request.call:Call.commit value of call: self._body_search",
        ("broken off",),
        "found out where it is used",
    ),
)


def is_tried(site: Site, fault: Fault) -> bool:
    """Whether a place can be relied on to be passed, and to fail in that way."""
    if str(site).startswith((*SOMETIMES, *GIVES_BACK)):
        return False
    return fault is not Fault.HANGS or not str(site).startswith(WAITS_FOR_PLACES)


def excused(site: Site, fault: Fault, outcome: Outcome) -> str:
    """Why the outcome is right although it is none of I3's."""
    if outcome.hung or outcome.left:
        return ""
    for excuse in EXCUSES:
        if str(site).startswith(excuse.place) and fault in excuse.faults:
            if outcome.kind.partition(":")[0] in excuse.kinds:
                return excuse.why
    return ""
