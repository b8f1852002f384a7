"""I2 and I4 over the whole core: whatever a head holds, a secret is put in only where everything is right."""

import base64
import binascii
import functools
from dataclasses import replace
from urllib.parse import quote, unquote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import event, given
from hypothesis import strategies as st

from coatcheck.decision.decide import DecisionContext, Identified, NeedBody, decide
from coatcheck.decision.denial import Deny
from coatcheck.decision.handle import Claims, HandleKeys, sign, verify
from coatcheck.decision.head import check_head
from coatcheck.decision.message import Destination, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.verdict import Inject, Pass
from coatcheck.policy import load_policy
from tests.fuzz.budget import budget

POLICY = load_policy(
    "default",
    b"""
version: 1
owner: tests
credentials:
  bearer:
    secret: vault:secret/a#key
    hosts: [api.example.org]
    inject: {header: Authorization, value: "Bearer {secret}"}
    methods: [GET]
  basic: {secret: "vault:secret/b#key", hosts: [git.example.org], inject: {basic: {username: x-access-token}}}
  query: {secret: "vault:secret/c#key", hosts: [api.example.org], inject: {query: key}}
  path: {secret: "vault:secret/d#key", hosts: [bot.example.org], inject: {path: {prefix: bot}}}
rules:
  - {name: api, hosts: [api.example.org], methods: [GET, POST], paths: [/v1/**], credentials: [bearer, query]}
  - {name: git, hosts: [git.example.org], methods: [GET], credentials: [basic]}
  - {name: bot, hosts: [bot.example.org], methods: [GET], credentials: [path]}
  - {name: open, hosts: [open.example.org], methods: [GET]}
""",
)
KEY, OTHER_KEY = (
    Ed25519PrivateKey.from_private_bytes(b"k" * 32),
    Ed25519PrivateKey.from_private_bytes(b"o" * 32),
)
KEYS = HandleKeys("k1", {"k1": KEY.public_key()})
ORIGIN = Origin(OriginClass.SOCKET, "ses_a")
GRANTED = frozenset({"bearer", "basic", "query", "path"})
SESSION = Session(
    "ses_a", "acme", "agent", "default", ORIGIN, GRANTED, Isolation.NONE, 2,
    opened_at=0.0, expires_at=1000.0, lease_seconds=100.0, lease_deadline=100.0,
    revoked_handles=frozenset({"revoked-bearer"}),
)  # fmt: skip


def _signed(name: str, sid: str = "ses_a", generation: int = 2, until: int = 900, jti: str = "") -> str:
    return sign(Claims(sid, name, generation, 0, until, jti or f"{sid}-{name}"), KEY, "k1")


GOOD = {name: _signed(name) for name in sorted(GRANTED)}
BAD = (
    *(_signed(name, sid="ses_b") for name in sorted(GRANTED)),
    *(_signed("bearer", generation=1), _signed("bearer", until=10), _signed("bearer", jti="revoked-bearer")),
    *(_signed("ungranted"), sign(Claims("ses_a", "bearer", 2, 0, 900, "forged"), OTHER_KEY, "k1")),
)
ALL = (*GOOD.values(), *BAD)


@st.composite
def _handles(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([*GOOD.values(), *GOOD.values(), *BAD]))
    match draw(st.sampled_from(["as it is"] * 6 + ["flip", "cut", "percent", "twice", "upper", "grow"])):
        case "flip":
            at = draw(st.integers(0, len(text) - 1))
            return text[:at] + draw(st.sampled_from("Aa1_-.=")) + text[at + 1 :]
        case "cut":
            return text[: draw(st.integers(1, len(text)))]
        case "percent":
            return "".join(f"%{ord(char):02x}" for char in text)
        case "twice":
            return quote("".join(f"%{ord(char):02X}" for char in text), safe="")
        case "upper":
            return text.upper()
        case "grow":
            return text + draw(st.sampled_from(["=", ".", "a", "A" * 700, "\x00"]))
    return text


_free = st.sampled_from(["", "", "", " ", "x", "Bearer ", "bearer ", "bot", ",", ";", "%20", "/", "&", "\t"])
HOSTS = {"bearer": "api", "basic": "git", "query": "api", "path": "bot"}


def _right(name: str, text: str) -> RequestHead:
    """A request as the policy wants it, with `text` for the handle."""
    match name:
        case "bearer":
            return RequestHead("GET", "/v1/x", (("authorization", f"Bearer {text}"),))
        case "basic":
            coded = base64.b64encode(f"x-access-token:{text}".encode("latin-1")).decode()
            return RequestHead("GET", "/a.git", (("authorization", f"Basic {coded}"),))
        case "query":
            return RequestHead("POST", f"/v1/x?a=b&key={text}", ())
        case _:
            return RequestHead("GET", f"/bot{text}/send", ())


@st.composite
def _another_header(draw: st.DrawFn) -> tuple[str, str]:
    text = draw(_handles() | _free)
    name = draw(
        st.sampled_from(["x-a", "cookie", "referer", "authorization", "proxy-authorization", text.lower()])
    )
    return name, draw(_free) + text + draw(_free)


@st.composite
def _asked(draw: st.DrawFn) -> tuple[Peer, Session, Destination, RequestHead]:
    """A request that is right but for at most two things."""
    name = draw(st.sampled_from(sorted(GRANTED)))
    peer, session = ME, SESSION
    place, head = Destination("https", f"{HOSTS[name]}.example.org", 443), _right(name, GOOD[name])
    for slip in draw(st.lists(st.sampled_from(SLIPS), max_size=2)):
        match slip:
            case "handle":
                head = _right(name, draw(_handles()))
            case "around":
                head = _right(name, draw(_free) + GOOD[name] + draw(_free))
            case "nothing":
                head = replace(head, headers=(), target=draw(st.sampled_from(["/v1", "/", "/v2"])))
            case "header":
                head = replace(head, headers=(*head.headers, draw(_another_header())))
            case "target":
                head = replace(
                    head, target=head.target + draw(st.sampled_from(["&", "/", "?key="])) + draw(_handles())
                )
            case "method":
                head = replace(head, method=draw(st.sampled_from(["GET", "POST", "PUT"])))
            case "place":
                host = draw(st.sampled_from(["api", "git", "bot", "open", "evil"]))
                place = replace(place, host=f"{host}.example.org")
            case "scheme":
                place = replace(place, scheme="http")
            case "port":
                place = replace(place, port=8443)
            case "session":
                session = draw(st.sampled_from(SESSIONS))
            case _:
                peer = draw(st.sampled_from([Peer("b", ()), Peer("b", (Origin(OriginClass.SOCKET, "x"),))]))
    return peer, session, place, head


SLIPS = (
    *("handle", "handle", "around", "nothing", "header", "header", "target", "method", "place", "place"),
    *("scheme", "port", "session", "peer"),
)
SESSIONS = (
    *(replace(SESSION, revoked=True), replace(SESSION, expires_at=5.0), replace(SESSION, lease_deadline=5.0)),
    *(
        replace(SESSION, credentials=frozenset()),
        replace(SESSION, policy="none"),
        replace(SESSION, id="ses_c"),
    ),
)
ME = Peer("a", (ORIGIN,))


@given(_asked())
@budget(500)
def test_a_secret_is_put_in_only_where_everything_is_right(
    asked: tuple[Peer, Session, Destination, RequestHead],
) -> None:
    """By a second, naive reading of session, policy, place and head, in which nothing else is a handle."""
    peer, session, place, head = asked
    claims = functools.cache(lambda text: verify(text, KEYS))
    world = DecisionContext(
        Now(50.0, 50.0), {ORIGIN: session}, {"default": POLICY}, claims, (), lambda _: False
    )
    verdict = check_head(head, http2=False) or decide(peer, place, head, world)
    event(type(verdict).__name__)
    if isinstance(verdict, Deny | Identified):
        return
    assert peer.origins == (ORIGIN,) and (place.scheme, place.port) == ("https", 443)
    assert (
        not session.revoked
        and min(session.expires_at, session.lease_deadline) > 50
        and session.policy == "default"
    )
    assert not isinstance(verdict, NeedBody)
    if isinstance(verdict, Pass):
        assert place.host == "open.example.org" and head.method == "GET"
        assert _handles_in(head) == 0
        return
    assert isinstance(verdict, Inject)
    names = [injection.credential.name for injection in verdict.injections]
    assert len(names) == len(set(names)) == _handles_in(head)
    for name, injection in zip(names, verdict.injections, strict=True):
        assert injection.handle == GOOD[name] and name in session.credentials and session.id == "ses_a"
        assert _stands(name, place.host, head)


def _stands(name: str, host: str, head: RequestHead) -> bool:
    """Whether its handle stands where the policy above says, as one would look for it by hand."""
    handle, sent = GOOD[name], dict(head.headers).get("authorization", "")
    path, _, query = head.target.partition("?")
    match name:
        case "bearer":
            inside = host == "api.example.org" and head.method == "GET" and path.startswith("/v1")
            return inside and sent[:7].lower() == "bearer " and sent[7:] == handle
        case "basic":
            password = base64.b64decode(sent[6:].strip()).decode("latin-1").partition(":")[2]
            return host == "git.example.org" and head.method == "GET" and password == handle
        case "query":
            return (
                host == "api.example.org" and path.startswith("/v1") and f"key={handle}" in query.split("&")
            )
        case _:
            return host == "bot.example.org" and head.method == "GET" and f"bot{handle}" in path.split("/")


def _handles_in(head: RequestHead) -> int:
    """How many handles that we signed stand in a head, decoded or not, whatever they are for."""
    texts = [head.target, *(part for field in head.headers for part in field)]
    for _, value in head.headers:
        if value[:5].lower() == "basic":
            try:
                texts.append(base64.b64decode(value[5:].strip()).decode("latin-1"))
            except (binascii.Error, ValueError):
                continue
    readings = [
        [text, unquote(text, "latin-1"), unquote(unquote(text, "latin-1"), "latin-1")] for text in texts
    ]
    return sum(max(reading.count(handle) for reading in each) for each in readings for handle in ALL)
