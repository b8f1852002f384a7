"""The straight line of a request, with the real state, store and audit log around it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import override

import pytest

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import Claims
from coatcheck.decision.message import Destination, Edits, Peer, RequestHead, ResponseHead
from coatcheck.decision.policy import Policy, SecretRef
from coatcheck.decision.response import ResponsePlan
from coatcheck.decision.session import Session
from coatcheck.policy import load_policy
from coatcheck.request.call import Call
from coatcheck.request.capacity import Places
from coatcheck.request.exchange import Exchange, ExchangeSettings
from coatcheck.request.known_secrets import KnownSecrets
from coatcheck.secrets import Secret, SecretDenied, SecretMissing, SecretUnavailable
from coatcheck.secrets.cache import CachedStore
from coatcheck.secrets.memory import MemoryStore
from coatcheck.state.sessions import NewSession
from coatcheck.state.state import State
from coatcheck.telemetry.audit.log import AuditUnavailable
from coatcheck.telemetry.events import Alarm, Completion, Decision, Event, Outcome
from tests.known_secrets import known_secret

POLICY = b"""
version: 1
owner: tests
credentials:
  api:
    secret: memory:secret/api#key
    hosts: [api.example.org]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: API_KEY
    revoke_on_theft: true
  form:
    secret: memory:secret/form#key
    hosts: [api.example.org]
    inject: {body: {field: token, max: 1000B}}
rules:
  - name: forms
    hosts: [api.example.org]
    methods: [POST]
    paths: [/form]
    credentials: [form]
  - name: calls
    hosts: [api.example.org]
    methods: [GET, POST]
    paths: [/v1/**]
    credentials: [api]
    limits: {requests: 60/hour, burst: 3, concurrent: 2}
    max_request: 10B
    max_response: 1KiB
  - name: masked
    hosts: [api.example.org]
    methods: [POST]
    paths: [/masked]
    handles_in_body: mask
  - name: strict
    hosts: [api.example.org]
    methods: [POST]
    paths: [/strict]
    handles_in_body: refuse
  - name: unread
    hosts: [api.example.org]
    methods: [GET]
    paths: [/unread]
    scrub: {off: tests}
"""
API = Destination("https", "api.example.org", 443)


class Store(CachedStore):
    """A store whose answers a test sets: at hand, to be waited for, or failing."""

    def __init__(self, secret: str) -> None:
        super().__init__(MemoryStore({}))
        self.secret = secret
        self.at_hand = True
        self.failure: Exception | None = None
        self.hangs = False

    @override
    def peek(self, ref: SecretRef) -> Secret | None:
        return Secret(ref, self.secret) if self.at_hand else None

    @override
    async def fetch(self, ref: SecretRef) -> Secret:
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        return Secret(ref, self.secret)


class World:
    """An exchange with one session, and what it told."""

    def __init__(self, state: State, policy: Policy, secret: str) -> None:
        self.told: list[Event] = []
        self.full = False
        state.swap_policies({policy.name: policy})
        self.state = state
        self.store = Store(secret)
        self.exchange = Exchange(state, self.store, self.emit, ExchangeSettings(0.2, max_waiting=1))
        self.session, self.handle = self.open()

    def emit(self, event: Event) -> None:
        if self.full:
            raise AuditUnavailable("disk full")
        self.told.append(event)

    def open(self) -> tuple[Session, str]:
        session, minted = self.state.open_session(NewSession("acme", "agent", "default"), "test")
        return session, minted[0].value

    def peer(self, session: Session | None = None) -> Peer:
        return Peer("own", ((session or self.session).origin,))

    async def ask(
        self, path: str = "/v1/x", handle: str | None = None, *, body: bool = False, peer: Peer | None = None
    ) -> Call:
        headers = (("authorization", f"Bearer {handle or self.handle}"),) if handle != "" else ()
        head = RequestHead("POST" if body else "GET", path, headers, end_stream=not body)
        call, waiting = self.exchange.receive(peer or self.peer(), API, head, http2=False)
        if waiting is not None:
            await waiting()
        return call

    def decisions(self) -> list[Decision]:
        return [event for event in self.told if isinstance(event, Decision)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Its tenant's secrets have been read."""
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    made = World(state, load_policy("default", POLICY), known_secret("the exchange's secret"))
    await made.exchange.secrets.learn(made.session)
    yield made
    state.close()


def why(value: object) -> Reason:
    assert isinstance(value, Deny)
    return value.reason


async def test_a_request_gets_its_secret_at_the_last_moment_and_is_recorded_first(world: World) -> None:
    """The record is there before `commit` gives the secret out."""
    call = await world.ask()
    assert [d.outcome for d in world.decisions()] == [Outcome.INJECT]
    edits = call.commit(b"")
    assert isinstance(edits, Edits)
    assert ("authorization", f"Bearer {world.store.secret}") in edits.set_headers


async def test_what_cannot_be_recorded_does_not_leave(world: World) -> None:
    """A full disk refuses (I8)."""
    world.full = True
    call = await world.ask()
    assert why(call.denial) is Reason.AUDIT_UNAVAILABLE
    assert why(call.commit(b"")) is Reason.AUDIT_UNAVAILABLE


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SecretUnavailable("down"), Reason.SECRET_UNAVAILABLE),
        (SecretMissing("none"), Reason.SECRET_MISSING),
        (SecretDenied("not for this daemon"), Reason.SECRET_UNAVAILABLE),
        (RuntimeError("bug"), Reason.INTERNAL_ERROR),
    ],
)
async def test_a_store_that_fails_refuses(world: World, failure: Exception, reason: Reason) -> None:
    """Whatever the store does, the request does not go without its secret, nor with a handle."""
    world.store.at_hand, world.store.failure = False, failure
    call = await world.ask()
    assert why(call.denial) is reason
    assert world.decisions()[-1].outcome is Outcome.DENY


async def test_a_store_that_hangs_refuses_in_time(world: World) -> None:
    """Whatever a store promises, a request waits for it only so long."""
    world.store.at_hand, world.store.hangs = False, True
    call = await world.ask()
    assert why(call.denial) is Reason.SECRET_UNAVAILABLE


async def test_a_tenant_whose_store_hangs_leaves_places_for_the_others(world: World) -> None:
    """However many sessions it has, half of the places to wait in stay free while it is alone."""
    world.store.at_hand, world.store.hangs = False, True
    world.exchange.waiting = Places(4)
    asked = [asyncio.create_task(world.ask(peer=world.peer(world.open()[0]), handle="")) for _ in range(6)]
    waiting = [asyncio.create_task(world.ask()) for _ in range(6)]
    await asyncio.sleep(0)
    assert world.exchange.waiting.of("acme") == 2
    other, minted = world.state.open_session(NewSession("another", "agent", "default"), "test")
    theirs = asyncio.create_task(world.ask(handle=minted[0].value, peer=world.peer(other)))
    await asyncio.sleep(0)
    assert world.exchange.waiting.of("another") == 1
    await asyncio.gather(*asked, *waiting, theirs)
    assert len(world.exchange.waiting) == 0


async def test_what_was_refused_while_it_waited_is_recorded_once(world: World) -> None:
    """Its connection is refused while the store is asked: the store's answer adds no record of a request
    that is over."""
    world.store.at_hand = False
    head = RequestHead("GET", "/v1/x", (("authorization", f"Bearer {world.handle}"),), end_stream=True)
    call, waiting = world.exchange.receive(world.peer(), API, head, http2=False)
    assert waiting is not None
    world.exchange.late_refusal(call, Deny(Reason.FRAMING_REFUSED))
    call.complete(Reason.FRAMING_REFUSED)
    await waiting()
    assert [each.reason for each in world.decisions()] == [Reason.FRAMING_REFUSED]


async def test_a_secret_that_has_to_be_waited_for_is_injected(world: World) -> None:
    """The one await of the request path."""
    world.store.at_hand = False
    call = await world.ask()
    assert isinstance(call.commit(b""), Edits)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SecretUnavailable("down"), Reason.SECRET_UNAVAILABLE),
        (RuntimeError("bug"), Reason.INTERNAL_ERROR),
        (None, Reason.SECRET_UNAVAILABLE),
    ],
)
async def test_nothing_leaves_whose_answer_could_show_what_is_not_known(
    world: World, failure: Exception | None, reason: Reason
) -> None:
    """As after a restart: also without a credential, and when the store hangs. A rule may say otherwise."""
    session, _ = world.state.open_session(NewSession("of a tenant without requests", "agent", "default"), "")
    peer = world.peer(session)
    world.store.at_hand = False
    world.store.failure, world.store.hangs = failure, failure is None
    assert why((await world.ask("/masked", "", body=True, peer=peer)).denial) is reason
    assert (await world.ask("/unread", "", peer=peer)).denial is None


async def test_a_tenant_with_too_many_secrets_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not looked for would come back."""
    monkeypatch.setattr(KnownSecrets, "KEPT", 1)
    call = await world.ask()
    assert why(call.commit(b"")) is Reason.TOO_MANY_SECRETS
    call.complete(None)
    session, _ = world.state.open_session(NewSession("another", "agent", "default"), "test")
    refused = await world.ask("/masked", "", body=True, peer=world.peer(session))
    assert why(refused.denial) is Reason.TOO_MANY_SECRETS


@pytest.mark.parametrize("taken", ["session", "handle", "lease"])
async def test_the_last_look_sees_what_was_taken_after_the_verdict(
    world: World, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between verdict and first byte the session may end, the handle be revoked, the lease lapse (I5)."""
    call = await world.ask()
    if taken == "session":
        world.state.revoke(world.session.id, "test")
        expected = Reason.SESSION_REVOKED
    elif taken == "handle":
        issued = next(h for h in world.state.handles(world.session.id) if h.claims.cred == "api")
        world.state.revoke_handle(world.session.id, issued.claims.jti)
        expected = Reason.HANDLE_REVOKED
    else:
        later = world.state.clock.now()
        monkeypatch.setattr(world.state.clock, "now", lambda: type(later)(later.wall, later.monotonic + 1000))
        expected = Reason.LEASE_LAPSED
    assert why(call.commit(b"")) is expected


def in_seconds(world: World, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The state's wall clock shows that much later; leases go on."""
    now = world.state.clock.now()
    later = type(now)(now.wall + seconds, now.monotonic)
    monkeypatch.setattr(world.state.clock, "now", lambda: later)


@pytest.mark.parametrize("waits", ["for its plane", "for the store"])
async def test_a_handle_that_expires_while_its_request_waits_gets_no_secret(
    world: World, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """A body that trickles in, an approval, a slow store: the last look is at the handle's end, too (I4)."""
    short = world.state.mint(world.session.id, "api", ttl=60.0).value
    if waits == "for the store":
        world.store.at_hand = False
        fetched = world.store.fetch

        async def slow(ref: SecretRef) -> Secret:
            in_seconds(world, monkeypatch, 61)
            return await fetched(ref)

        monkeypatch.setattr(world.store, "fetch", slow)
    call = await world.ask(handle=short)
    assert call.denial is None
    if waits == "for its plane":
        in_seconds(world, monkeypatch, 61)
    out = call.commit(b"")
    assert why(out) is Reason.HANDLE_EXPIRED
    assert world.store.secret not in repr(out)
    assert not call.committed


async def test_a_handle_that_expires_while_its_body_is_buffered_gets_no_secret(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle stands in the body, so the verdict comes with the whole of it; then the store is asked."""
    world.state.swap_policies({"default": load_policy("default", IN_BODY)})
    text = json.dumps({"key": world.state.mint(world.session.id, "api", ttl=60.0).value}).encode()
    head = RequestHead("POST", "/v1/x", (("content-type", "application/json"),), end_stream=False)
    call, _ = world.exchange.receive(world.peer(), API, head, http2=False)
    world.exchange.receive_body(call, text)
    assert call.denial is None
    in_seconds(world, monkeypatch, 61)
    assert why(call.commit(text)) is Reason.HANDLE_EXPIRED


async def test_a_revoked_session_gets_no_clean_end(world: World) -> None:
    """The last chunk went before; the end of the message would vouch for it, and does not follow (I3)."""
    call = await world.ask(body=True)
    assert isinstance(call.commit(b""), Edits)
    assert call.upload(b"x") == b"x"
    assert isinstance(call.respond(ResponseHead(200, ()), end_stream=False), ResponsePlan)
    world.state.revoke(world.session.id, "test")
    assert why(call.upload_end()) is Reason.SESSION_REVOKED
    assert why(call.download_end()) is Reason.SESSION_REVOKED


async def test_a_policy_that_changes_under_a_request_ends_it(world: World) -> None:
    """A rule that is gone lets no further chunk pass (OneCLI #178)."""
    call = await world.ask()
    assert isinstance(call.commit(b""), Edits)
    world.state.swap_policies({"default": load_policy("default", b"version: 1\nowner: tests\n" + RULES)})
    assert why(call.download(b"x")) is Reason.PATH_NOT_ALLOWED


RULES = b"rules:\n  - {name: other, hosts: [api.example.org], methods: [GET], paths: [/other]}\n"


async def test_limits_count_in_and_out(world: World) -> None:
    """Two at once, three in a row; ending one makes room, and a refused one takes none."""
    first, second = await world.ask(), await world.ask()
    assert why((await world.ask()).denial) is Reason.CONCURRENCY_LIMITED
    first.complete(None)
    second.complete(None)
    third = await world.ask()
    assert third.denial is None
    third.complete(None)
    refused = (await world.ask()).denial
    assert why(refused) is Reason.RATE_LIMITED
    assert refused is not None
    assert refused.retry_after is not None
    assert refused.retry_after > 0


async def test_streamed_bytes_are_limited_each_way(world: World) -> None:
    """By rule, counted by us: a Content-Length may lie, chunks have none."""
    call = await world.ask(body=True)
    assert isinstance(call.commit(b""), Edits)
    assert call.upload(b"12345678") == b"12345678"
    assert why(call.upload(b"901")) is Reason.BODY_TOO_LARGE
    assert isinstance(call.respond(ResponseHead(200, ()), end_stream=False), ResponsePlan)
    assert call.download(b"x" * 1000) != []
    assert why(call.download(b"x" * 100)) is Reason.BODY_TOO_LARGE


async def test_the_session_loses_its_secret_in_every_answer(world: World) -> None:
    """Also in answers to requests that carried none, and in streams opened before the first use."""
    early = await world.ask("/masked", "", body=True)
    assert isinstance(early.commit(b""), Edits)
    assert isinstance(early.respond(ResponseHead(200, ()), end_stream=False), ResponsePlan)
    call = await world.ask()
    call.commit(b"")
    secret = world.store.secret.encode()
    out = early.download(b"echo " + secret + b"\n")
    assert isinstance(out, list)
    assert b"".join(out) == b"echo " + b"*" * len(secret) + b"\n"
    early.complete(None)
    ended = [event for event in world.told if isinstance(event, Completion)]
    assert ended[-1].scrubbed == 1


async def test_no_range_begins_inside_an_echo(world: World) -> None:
    """Nor in an answer to a request without credential, before any was used."""
    head = RequestHead("POST", "/masked", (("range", "bytes=5-"),))
    call, _ = world.exchange.receive(world.peer(), API, head, http2=False)
    after = call.commit(b"")
    assert isinstance(after, Edits)
    assert "range" in after.remove_headers
    refused = call.respond(ResponseHead(206, (("content-range", "bytes 5-9/10"),)), end_stream=False)
    assert why(refused) is Reason.UPSTREAM_RESPONSE_REFUSED


@pytest.mark.parametrize(("path", "expected"), [("/masked", "masked"), ("/strict", "refused")])
async def test_handles_in_bodies_are_treated_as_the_rule_says(world: World, path: str, expected: str) -> None:
    """Masked or refused where policy says so; reported once a session either way."""
    call = await world.ask(path, "", body=True)
    assert isinstance(call.commit(b""), Edits)
    text = f'{{"prompt": "env: {world.handle}"}}'.encode()
    out = call.upload(text)
    if expected == "refused":
        assert why(out) is Reason.HANDLE_MISPLACED
    else:
        rest = call.upload_end()
        assert isinstance(out, bytes)
        assert isinstance(rest, bytes)
        assert len(out + rest) == len(text)
        assert world.handle.encode() not in out + rest
    again = await world.ask(path, "", body=True)
    again.commit(b"")
    again.upload(text)
    assert len([event for event in world.told if isinstance(event, Alarm)]) == 1


async def test_theft_is_told_and_may_end_the_victims_session(world: World) -> None:
    """`revoke_on_theft`: the handle's owner loses its session when another sandbox shows the handle."""
    ended: list[str] = []
    world.exchange.revoke_for_theft = lambda session_id, why: ended.append(session_id)
    thief, _ = world.open()
    call = await world.ask(peer=world.peer(thief))
    assert why(call.denial) is Reason.HANDLE_STOLEN
    assert ended == [world.session.id]
    assert any(isinstance(event, Alarm) for event in world.told)


@pytest.mark.parametrize("dead", ["revoked", "of an earlier generation", "of a session that is over"])
async def test_a_handle_that_counts_nowhere_ends_nobodys_session(world: World, dead: str) -> None:
    """It alarms like every handle of another sandbox. But old handles lie in logs and images, and finding one
    must not be a way to end sessions."""
    ended: list[str] = []
    world.exchange.revoke_for_theft = lambda session_id, why: ended.append(session_id)
    thief, _ = world.open()
    claims = world.state.genuine.claims_of(world.handle)
    assert isinstance(claims, Claims)
    if dead == "revoked":
        world.state.revoke_handle(world.session.id, claims.jti)
    elif dead == "of an earlier generation":
        world.state.rebind(world.session.id, "test")
    else:
        world.state.revoke(world.session.id, "test")
    call = await world.ask(peer=world.peer(thief))
    assert why(call.denial) is Reason.HANDLE_STOLEN
    assert any(isinstance(event, Alarm) for event in world.told)
    assert not ended


async def test_draining_and_overload_refuse_what_is_new(world: World) -> None:
    """What runs goes on; 503 tells the client to come back."""
    world.exchange.capacity.max_calls = 4
    running = [await world.ask("/masked", "", body=True) for _ in range(4)]
    assert why((await world.ask("/masked", "", body=True)).denial) is Reason.CAPACITY
    for call in running:
        call.complete(None)
    world.exchange.draining = True
    assert why((await world.ask()).denial) is Reason.DRAINING


async def test_an_ended_call_lets_nothing_more_pass(world: World) -> None:
    """Whatever a plane does wrong afterwards."""
    call = await world.ask()
    call.commit(b"")
    call.complete(None)
    call.complete(Reason.INTERNAL_ERROR)
    assert why(call.download(b"x")) is Reason.INTERNAL_ERROR
    assert len([event for event in world.told if isinstance(event, Completion)]) == 1
    assert not world.exchange.calls


async def test_audit_paths_hold_no_handle(world: World) -> None:
    """A handle in the path is masked in the record that reports it."""
    await world.ask(f"/v1/{world.handle}", "")
    assert world.handle not in world.decisions()[-1].path


def test_a_challenge_is_a_401() -> None:
    """Git answers only that."""
    assert Deny(Reason.HANDLE_MISSING, challenge='Basic realm="x"').status == 401
    assert Deny(Reason.HOST_NOT_ALLOWED).status == 403


@pytest.mark.parametrize(
    "rule",
    [b"{name: calls, hosts: [api.example.org], methods: [GET, POST], paths: [/v1/**]}", b""],
    ids=["the rule has lost it", "its paths have changed"],
)
async def test_a_credential_that_the_policy_takes_back_is_not_put_in(world: World, rule: bytes) -> None:
    """Between the verdict and the first upstream byte lies a wait for the store: up to ten seconds."""
    call = await world.ask()
    rest = b"  - {name: k, hosts: [api.example.org], methods: [GET], paths: [/k], credentials: [api, form]}"
    without = POLICY.split(b"rules:")[0] + b"rules:\n  - " + rule + b"\n" + rest
    narrowed = POLICY.replace(b"    env:", b"    paths: [/v2/**]\n    env:").replace(
        b"paths: [/v1/**]", b"paths: [/v1/**, /v2/**]"
    )
    world.state.swap_policies({"default": load_policy("default", without if rule else narrowed)})
    assert why(call.commit(b"")) in (Reason.HANDLE_OUT_OF_SCOPE, Reason.HANDLE_WRONG_HOST)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"memory:secret/api#key", b"memory:secret/other#key"),
        (b'{header: Authorization, value: "Bearer {secret}"}', b"{header: X-Api-Key}"),
    ],
    ids=["its secret", "its place"],
)
async def test_a_credential_that_became_another_one_is_not_put_in(
    world: World, before: bytes, after: bytes
) -> None:
    """The verdict, and perhaps a person's yes, was on what its name stood for then."""
    call = await world.ask()
    world.state.swap_policies({"default": load_policy("default", POLICY.replace(before, after))})
    assert why(call.commit(b"")) is Reason.HANDLE_OUT_OF_SCOPE


IN_BODY = (
    POLICY.replace(b'{header: Authorization, value: "Bearer {secret}"}', b"{body: {field: key, max: 4KiB}}")
    .replace(b"    credentials: [api]\n", b"    credentials: [api]\n    handles_in_body: refuse\n")
    .replace(b"max_request: 10B", b"max_request: 1000B")
)


@pytest.mark.parametrize(
    ("note", "expected"),
    [("", None), ("x" * 1000, Reason.BODY_TOO_LARGE), ("other", Reason.HANDLE_MISPLACED)],
    ids=["declared", "too long", "another handle"],
)
async def test_a_buffered_body_is_counted_and_searched_like_any_other(
    world: World, note: str, expected: Reason | None
) -> None:
    """`max_request`, byte limits and `handles_in_body` hold where the credential stands in the body."""
    world.state.swap_policies({"default": load_policy("default", IN_BODY)})
    other = world.state.mint(world.session.id, "api").value
    text = json.dumps({"key": world.handle, "note": other if note == "other" else note}).encode()
    head = RequestHead("POST", "/v1/x", (("content-type", "application/json"),), end_stream=False)
    call, _ = world.exchange.receive(world.peer(), API, head, http2=False)
    waiting = world.exchange.receive_body(call, text)
    assert waiting is None
    assert call.denial is None
    out = call.commit(text)
    assert (why(out) if isinstance(out, Deny) else None) is expected
    call.complete(None)
    if expected is None:
        assert [event.bytes_up for event in world.told if isinstance(event, Completion)] == [len(text)]


DECOYS = b" ".join(b"cch_eyJ%04d" % number for number in range(64)) + b" "


@pytest.mark.parametrize("before", [b"", DECOYS, DECOYS + b"cch_eyJmore ", b"cch_eyJA"])
@pytest.mark.parametrize("behind", [b"", b" rest", b"x", b"."])
@pytest.mark.parametrize("path", ["/strict", "/masked", "/open"])
async def test_no_decoy_hides_a_handle_in_a_body(
    world: World, before: bytes, behind: bytes, path: str
) -> None:
    """64 texts that only looked like handles, or one glued to the handle, and no alarm was raised."""
    open_rule = b"  - {name: open, hosts: [api.example.org], methods: [POST], paths: [/open]}\n"
    world.state.swap_policies({"default": load_policy("default", POLICY + open_rule)})
    handle = world.handle.encode()
    body = before + handle + behind
    for cut in range(len(body)):
        call = await world.ask(path, "", body=True)
        assert isinstance(call.commit(b""), Edits)
        out = [call.upload(body[:cut]), call.upload(body[cut:]), call.upload_end()]
        call.complete(None)
        refusals = [part.reason for part in out if isinstance(part, Deny)]
        assert bool(refusals) is (path == "/strict")
        assert set(refusals) <= {Reason.HANDLE_MISPLACED}
        if path != "/strict":
            sent = b"".join(part for part in out if isinstance(part, bytes))
            assert (handle in sent) is (path == "/open")
            assert len(sent) == len(body)
    assert len([event for event in world.told if isinstance(event, Alarm)]) == 1


async def test_a_buffered_body_full_of_decoys_is_refused_where_handles_are(world: World) -> None:
    """What is signed, or gets a credential, is searched as a whole."""
    policy = IN_BODY.replace(b"max_request: 1000B", b"max_request: 4KiB")
    world.state.swap_policies({"default": load_policy("default", policy)})
    text = json.dumps({"key": world.handle, "note": DECOYS.decode()}).encode()
    head = RequestHead("POST", "/v1/x", (("content-type", "application/json"),), end_stream=False)
    call, _ = world.exchange.receive(world.peer(), API, head, http2=False)
    world.exchange.receive_body(call, text)
    assert why(call.commit(text)) is Reason.HANDLE_MISPLACED


async def test_a_websockets_messages_are_bodies_and_its_pings_count(world: World) -> None:
    """`handles_in_body` holds in messages; control frames are no way around a byte limit."""
    policy = POLICY.replace(b"methods: [POST]", b"methods: [GET]").replace(
        b"handles_in_body: refuse", b"handles_in_body: refuse\n    websocket: true\n    max_request: 374B"
    )
    world.state.swap_policies({"default": load_policy("default", policy)})
    headers = (
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    )
    head = RequestHead("GET", "/strict", headers)
    calls = [world.exchange.receive(world.peer(), API, head, http2=False)[0] for _ in range(2)]
    for call in calls:
        assert isinstance(call.commit(b""), Edits)
    assert why(calls[0].upload(f'"{world.handle}"'.encode())) is Reason.HANDLE_MISPLACED
    for _ in range(2):
        assert calls[1].websocket_control(b"x" * 125, from_client=True) == b"x" * 125
    assert why(calls[1].websocket_control(b"x" * 125, from_client=True)) is Reason.BODY_TOO_LARGE


async def test_a_signature_does_not_come_back_in_another_requests_answer(tmp_path: Path) -> None:
    """An upstream that shows one request to another, in its headers and its body."""
    policy = b"""
version: 1
owner: tests
credentials:
  sig:
    secret: memory:secret/api#key
    hosts: [api.example.org]
    inject: {hmac: {header: X-Sig, message: "{method} {path}"}}
rules:
  - {name: r, hosts: [api.example.org], methods: [GET], credentials: [sig]}
  - {name: log, hosts: [api.example.org], methods: [HEAD, POST]}
"""
    state = State.open(tmp_path / "sessions", emit=lambda event: None)
    world = World(state, load_policy("default", policy), known_secret("the exchange's secret"))

    await world.exchange.secrets.learn(world.session)

    def commit(method: str, path: str, *headers: tuple[str, str]) -> tuple[Call, Edits]:
        call, _ = world.exchange.receive(world.peer(), API, RequestHead(method, path, headers), http2=False)
        edits = call.commit(b"")
        assert isinstance(edits, Edits)
        return call, edits

    before, _ = commit("POST", "/log")
    assert isinstance(before.respond(ResponseHead(200, ()), end_stream=False), ResponsePlan)
    made = dict(commit("GET", "/pay", ("x-sig", world.handle))[1].set_headers)["x-sig"]
    signed, plain = commit("GET", "/log", ("x-sig", world.handle))[0], commit("POST", "/log")[0]
    for call in (signed, plain):
        plan = call.respond(ResponseHead(200, (("x-last", made),)), end_stream=False)
        assert isinstance(plan, ResponsePlan) and plan.headers == (("x-last", "*" * 64),)
    for call in (before, signed, plain):
        out, rest = call.download(made.encode()), call.download_end()
        assert not isinstance(out, Deny) and not isinstance(rest, Deny)
        assert b"".join((*out, *rest)) == b"*" * 64
    state.close()
