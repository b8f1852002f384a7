"""The same data for the pure core: a structured request becomes values, and the verdict is compared.

Only cases that are one `request` step have a part here: what bytes mean is the planes' matter.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.decision.decide import DecisionContext, Identified, NeedBody, decide, decide_connect
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims, HandleKeys, sign, verify
from coatcheck.decision.head import check_head
from coatcheck.decision.host import HostRefused, split_authority
from coatcheck.decision.message import Destination, Origin, OriginClass, Peer, RequestHead
from coatcheck.decision.policy import Policy
from coatcheck.decision.session import Isolation, Now, Session
from coatcheck.decision.verdict import Inject
from coatcheck.policy.file.loading import load_policy
from tests.corpus import handles
from tests.corpus.driver import request_bytes
from tests.corpus.expand import expander
from tests.corpus.proxies import Inside, secrets
from tests.corpus.schema import HERE, Run, policies

IN_BRACES: Final = handles
"""It adds to what may stand in braces."""
NOW: Final = Now(1_800_000_000.0, 1000.0)
_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_KEYS: Final = HandleKeys("k1", {"k1": _KEY.public_key()})


def has_part(run: Run) -> bool:
    """Whether the pure core alone can say what is expected."""
    return (
        run.mode == "explicit"
        and next(iter(run.case.steps[0])) == "request"
        and len(run.case.steps) == 1
        and not run.case.session
        and run.case.expect.core == "same"
    )


def verdict(run: Run) -> tuple[str, Reason | None]:
    """The outcome and the reason, by the core alone."""
    policy = _policy(run.case.policy)
    asked = run.case.steps[0]["request"]
    said = _decide(asked, _world(policy), _inside(policy))
    if isinstance(said, Identified):
        said = said.denial
    if isinstance(said, Deny):
        return "deny", said.reason
    return ("inject" if isinstance(said, Inject | NeedBody) else "pass"), None


def wrong(run: Run) -> list[str]:
    """How that differs from what the case expects."""
    outcome, reason = verdict(run)
    expect = run.case.expect
    wanted = ("deny" if expect.refuses else expect.verdict), expect.reason
    return [] if (outcome, reason) == wanted else [f"{outcome} {reason}, not {wanted[0]} {wanted[1]}"]


def _decide(asked: Mapping[str, Any], world: DecisionContext, inside: Inside) -> Any:
    peer = Peer("ses_a", (_origin("ses_a"),))
    secure = asked.get("scheme", "https") == "https"
    default = 443 if secure else 80
    host, port = str(asked["host"]), int(asked.get("port", default))
    try:
        target = split_authority(str(asked.get("connect", f"{host}:{port}")), None)
        if secure:
            tunnel = decide_connect(peer, *target, world)
            if isinstance(tunnel, Deny | Identified):
                return tunnel
        if secure and asked.get("sni", host) != target[0]:
            return Deny(Reason.AUTHORITY_MISMATCH)
        head = _head(asked, inside)
        named = head.get_all("host")
        if not named or any(split_authority(each, default) != target for each in named):
            return Deny(Reason.AUTHORITY_MISMATCH)
    except HostRefused:
        return Deny(Reason.HOST_FORM_REFUSED)
    return check_head(head, http2=False) or decide(
        peer, Destination("https" if secure else "http", *target), head, world
    )


def _head(asked: Mapping[str, Any], inside: Inside) -> RequestHead:
    text = request_bytes(asked, str(asked.get("path", "/")), expander(inside, secrets()))
    head, _, body = text.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    method, target = line.removesuffix(" HTTP/1.1").split(" ", 1)
    pairs = [each.split(":", 1) for each in fields]
    headers = tuple((name.lower(), value.strip()) for name, value in pairs)
    return RequestHead(method, target, headers, end_stream=not body)


@cache
def _policy(name: str) -> Policy:
    return load_policy(name, policies()[name].encode())


def _origin(session: str) -> Origin:
    return Origin(OriginClass.SOCKET, session)


def _world(policy: Policy) -> DecisionContext:
    session = Session(
        id="ses_a",
        tenant="acme",
        subject="agent",
        policy=policy.name,
        origin=_origin("ses_a"),
        credentials=frozenset(policy.credentials),
        isolation=Isolation.NONE,
        generation=1,
        opened_at=NOW.wall,
        expires_at=NOW.wall + 1000,
        lease_seconds=100.0,
        lease_deadline=NOW.monotonic + 100,
    )
    return DecisionContext(
        now=NOW,
        by_origin={session.origin: session},
        policies={policy.name: policy},
        claims_of=lambda text: verify(text, _KEYS),
        references=(),
        known=lambda _: False,
    )


def _inside(policy: Policy) -> Inside:
    own, foreign = _handles(policy, "ses_a"), _handles(policy, "ses_b")
    return Inside("ses_a", ("", 0), HERE, own, {}, foreign, ("k1", _KEY), lambda: NOW.wall)


def _handles(policy: Policy, session: str) -> dict[str, str]:
    at = int(NOW.wall)
    return {
        name: sign(Claims(session, name, 1, at, at + 1000, f"{session}-{name}"), _KEY, "k1")
        for name in policy.credentials
    }
