"""The metadata service, asked as a guest asks, in front of a real daemon's control API."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coatcheck.client.control import ControlClient
from coatcheck.metadata import http as metadata_http
from coatcheck.metadata.handles import Handles
from coatcheck.metadata.http import MAX_CONNECTIONS, Client
from coatcheck.metadata.service import RATE, TTL_HEADER, MetadataService
from coatcheck.metadata.tokens import LastingTokens
from coatcheck.state.sessions import NewSession
from tests.daemon import TestDaemon, running_daemon
from tests.known_secrets import known_secret
from tests.system.metadata.metadata_socket import answer, ask, metadata_on, request
from tests.upstreams import UpstreamTls

POLICY = """
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
    env: OPENAI_API_KEY
  aws:
    secret: memory:secret/aws#keys
    hosts: [sqs.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [sqs]}}
  backup:
    secret: memory:secret/aws#backup
    hosts: [sqs.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [sqs]}}
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET]
    credentials: [openai]
  - name: aws
    hosts: [sqs.eu-central-1.amazonaws.com]
    methods: [POST]
    credentials: [aws, backup]
"""
SESSION = "X-aws-ec2-metadata-token"
ROLES = "/latest/meta-data/iam/security-credentials/"


class Counting(ControlClient):
    """Counts what the service makes the daemon do."""

    minted = shown = 0

    def mint(self, session: str, credential: str, ttl_seconds: float | None = None) -> dict[str, Any]:
        self.minted += 1
        return super().mint(session, credential, ttl_seconds)

    def show(self, session: str) -> dict[str, Any]:
        self.shown += 1
        return super().show(session)


@dataclass
class Guest:
    """Two identities of one sandbox, and what they reach."""

    daemon: TestDaemon
    service: MetadataService
    control: Counting
    agent: Path
    tool: Path
    who: Client
    now: list[float] = field(default_factory=lambda: [0.0])
    """Seconds that the service's clocks are ahead."""

    async def token(self, ttl: str = "60", path: Path | None = None) -> str:
        status, _, body = await ask(
            path or self.agent, request("PUT", "/latest/api/token", f"{TTL_HEADER}: {ttl}")
        )
        assert status == 200, body
        return body.decode()

    async def get(self, path: str, socket: Path | None = None) -> tuple[int, bytes]:
        socket = socket or self.agent
        token = await self.token(path=socket)
        status, _, body = await ask(socket, request("GET", path, f"{SESSION}: {token}"))
        return status, body

    async def json(self, path: str, socket: Path | None = None) -> Any:
        status, body = await self.get(path, socket)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture
async def guest(
    tmp_path_factory: pytest.TempPathFactory, all_output: Path, upstream_tls: UpstreamTls
) -> AsyncIterator[Guest]:
    """Identity `agent` has all credentials, `tool` only `openai`."""
    short = tmp_path_factory.mktemp("m")
    pair = ":".join((known_secret("metadata aws id", prefix="AKIA", length=16), known_secret("metadata aws")))
    secrets = {
        "memory:secret/openai#api_key": known_secret("metadata openai"),
        "memory:secret/aws#keys": pair,
        "memory:secret/aws#backup": pair,
    }
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(
            running_daemon(
                all_output / short.name, POLICY, secrets, upstream_ca=upstream_tls.ca, connect_to={}
            )
        )
        wanted = NewSession("acme", "agent", "default")
        agent = Client("agent", daemon.state.open_session(wanted, "uid:0")[0].id)
        less = NewSession("acme", "tool", "default", credentials=frozenset({"openai"}))
        tool = Client("tool", daemon.state.open_session(less, "uid:0")[0].id)
        control = Counting(daemon.settings.control, timeout=5)
        now = [0.0]
        service = MetadataService(
            control,
            "sbx_0123456789abcdef",
            lambda: {"memory_mib": 512},
            handles=Handles(control, clock=lambda: time.time() + now[0]),
            clock=lambda: time.monotonic() + now[0],
        )
        stack.push_async_callback(service.close)
        sockets = [
            await stack.enter_async_context(metadata_on(service, who, short / who.name))
            for who in (agent, tool)
        ]
        yield Guest(daemon, service, control, sockets[0], sockets[1], agent, now)


# --- who asks, and how ---------------------------------------------------------------------------------


async def test_nothing_is_told_without_a_token(guest: Guest) -> None:
    """A request that a server was tricked into making cannot set a header (SSRF)."""
    for path in ("/v1/identity", "/v1/handles/openai", ROLES, "/latest/meta-data/instance-id", "/nowhere"):
        for header in ((), (f"{SESSION}: ",), (f"{SESSION}: {'A' * 80}",)):
            status, _, body = await ask(guest.agent, request("GET", path, *header))
            assert (status, json.loads(body)["error"]["reason"]) == (401, "token_required"), path
    assert guest.control.shown == guest.control.minted == 0


async def test_a_tokens_life_is_1_to_21600_seconds(guest: Guest) -> None:
    """As Amazon's; anything else is a bad request, and so is none at all."""
    for ttl in ("0", "21601", "-1", "1e3", "", " ", "\xb2", "999999999"):
        raw = request("PUT", "/latest/api/token", f"{TTL_HEADER}: {ttl}")
        assert (await ask(guest.agent, raw))[0] == 400, ttl
    assert (await ask(guest.agent, request("PUT", "/latest/api/token")))[0] == 400


async def test_a_token_expires(guest: Guest) -> None:
    """It holds for the seconds it was asked for, and no longer."""
    token = await guest.token("21600")
    guest.now[0] = 21_599
    assert (await ask(guest.agent, request("GET", "/v1/limits", f"{SESSION}: {token}")))[0] == 200
    guest.now[0] = 21_601
    assert (await ask(guest.agent, request("GET", "/v1/limits", f"{SESSION}: {token}")))[0] == 401


async def test_a_token_is_of_one_identity_and_one_generation(guest: Guest, tmp_path: Path) -> None:
    """The harness' is worth nothing to the tool, nor to the sandbox after it was forked (I10)."""
    token = await guest.token()
    mine = request("GET", "/v1/limits", f"{SESSION}: {token}")
    assert (await ask(guest.agent, mine))[0] == 200
    assert (await ask(guest.tool, mine))[0] == 401
    fork = MetadataService(guest.control, "sbx_fedcba9876543210", dict)
    async with metadata_on(fork, guest.who, tmp_path / "m") as theirs:
        assert (await ask(theirs, mine))[0] == 401
    await fork.close()


async def test_another_host_is_refused(guest: Guest) -> None:
    """A name that a browser resolved to our address is not ours (DNS rebinding)."""
    ours = "169.254.169.254"
    for host in ("localhost", f"{ours}:80", "evil.example", f"{ours}.evil.example", "169.254.169.253", ""):
        raw = request("PUT", "/latest/api/token", f"{TTL_HEADER}: 60", host=host)
        status, _, body = await ask(guest.agent, raw)
        assert (status, json.loads(body)["error"]["reason"]) == (400, "wrong_host"), host


async def test_what_was_passed_on_is_refused(guest: Guest) -> None:
    """An open proxy, or a browser, inside the sandbox is no way to a token."""
    for header in (
        "X-Forwarded-For: 1.2.3.4", "Forwarded: for=x", "Via: 1.1 x", "X-Forwarded-Host: x", "Origin: null",
        "Sec-Fetch-Mode: cors", "Sec-Fetch-Site: none", "X-Real-IP: 1.2.3.4", "Referer: http://x/",
    ):  # fmt: skip
        raw = request("PUT", "/latest/api/token", f"{TTL_HEADER}: 60", header)
        status, _, body = await ask(guest.agent, raw)
        assert (status, json.loads(body)["error"]["reason"]) == (403, "passed_on"), header


async def test_what_is_malformed_is_refused_and_the_service_goes_on(guest: Guest) -> None:
    """aiohttp parses strictly; heads and bodies are bounded."""
    token = "/latest/api/token"
    for raw in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 80,
        b"GET /v1/limits HTTP/1.1\r\nHost: 169.254.169.254\r\nHost: x\r\n\r\n",
        b"GET /v1/limits HTTP/1.1\r\nHost : 169.254.169.254\r\n\r\n",
        b"GET /v1/limits HTTP/1.1\r\nHost: 169.254.169.254\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET http://169.254.169.254/v1/limits HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
        request("PUT", token, f"{TTL_HEADER}: 60", f"{TTL_HEADER}: 61"),
        request("PUT", token, f"{TTL_HEADER}: 60", body=b"x" * 2000),
        request("PUT", token, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    ):
        assert 400 <= (await ask(guest.agent, raw))[0] < 500, raw[:80]
        assert await guest.token()


async def test_methods_are_get_and_put(guest: Guest) -> None:
    """Nothing else has a meaning, also where the answer has no body."""
    token = await guest.token()
    for method in ("POST", "DELETE", "HEAD", "OPTIONS"):
        reader, writer = await asyncio.open_unix_connection(guest.agent)
        writer.write(request(method, "/v1/limits", f"{SESSION}: {token}", "Connection: close"))
        assert b" 405 " in await reader.readline(), method
        writer.transport.abort()
    assert (await ask(guest.agent, request("GET", "/latest/api/token")))[0] == 405


async def test_a_connection_serves_several_requests(guest: Guest) -> None:
    """As SDKs use it: the token and two resources on one connection, pipelined too."""
    token = await guest.token()
    reader, writer = await asyncio.open_unix_connection(guest.agent)
    for _ in range(2):
        writer.write(request("GET", "/v1/limits", f"{SESSION}: {token}") * 2)
        for _ in range(2):
            status, _, body = await answer(reader)
            assert (status, json.loads(body)) == (200, {"memory_mib": 512})
    writer.transport.abort()


async def test_a_request_has_a_deadline(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte at a time holds a place no longer than silence does."""
    monkeypatch.setattr(metadata_http, "REQUEST_SECONDS", 0.3)
    reader, writer = await asyncio.open_unix_connection(guest.agent)
    began = time.monotonic()
    writer.write(b"GET /v1/limits HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    assert time.monotonic() - began >= 0.3
    writer.transport.abort()


async def test_a_loop_is_slowed_down_and_its_neighbour_is_not(guest: Guest) -> None:
    """Each identity has its own share."""
    one = request("GET", "/v1/limits")
    seen = [(await ask(guest.agent, one))[0] for _ in range(RATE.burst)]
    seen += [status for status, _, _ in await asyncio.gather(*(ask(guest.agent, one) for _ in range(50)))]
    assert 429 in seen and 401 in seen
    assert await guest.token(path=guest.tool)


async def test_connections_are_bounded(guest: Guest) -> None:
    """One more than a sandbox may have is ended at once; when one is over there is room again."""
    held = [await asyncio.open_unix_connection(guest.agent) for _ in range(MAX_CONNECTIONS)]
    for _, writer in held:
        writer.write(b"GET ")
    await asyncio.sleep(0.05)
    assert (await ask(guest.tool, request("GET", "/")))[0] == 0
    for _, writer in held:
        writer.transport.abort()
    await asyncio.sleep(0.05)
    assert await guest.token(path=guest.tool)


# --- resources -----------------------------------------------------------------------------------------


async def test_identity_and_lease_are_the_sessions(guest: Guest) -> None:
    """Told by the daemon about the channel's session; nothing in the request can name another."""
    found = await guest.json("/v1/identity")
    assert found == {
        "sandbox": "sbx_0123456789abcdef", "identity": "agent", "session": guest.who.session,
        "tenant": "acme", "subject": "agent", "policy": "default", "generation": 1, "isolation": "none",
    }  # fmt: skip
    assert (await guest.json("/v1/identity", guest.tool))["subject"] == "tool"
    lease = await guest.json("/v1/lease")
    assert time.time() < lease["lease_expires_at"] < lease["expires_at"]


async def test_handles_are_named_and_minted_for_minutes(guest: Guest) -> None:
    """A handle of ten minutes, given again until half of its life is over, and counted as the session's."""
    assert (await guest.json("/v1/handles"))["handles"] == ["aws", "backup", "openai"]
    first = await guest.json("/v1/handles/openai")
    assert first["value"].startswith("cch_") and first["environment"] == {"OPENAI_API_KEY": first["value"]}
    assert 590 <= first["expires_at"] - time.time() <= 600
    guest.now[0] = 200
    assert (await guest.json("/v1/handles/openai"))["value"] == first["value"]
    guest.now[0] = 320
    assert (await guest.json("/v1/handles/openai"))["value"] != first["value"]
    assert guest.control.minted == 2


async def test_a_handle_that_was_revoked_is_not_given_again(guest: Guest) -> None:
    """Anyone who revoked one string did not end the session."""
    first = await guest.json("/v1/handles/openai")
    jti = [h["jti"] for h in guest.control.show(guest.who.session)["handles"] if h["credential"] == "openai"]
    for each in jti:
        guest.control.revoke_handle(guest.who.session, each)
    guest.now[0] = 2
    assert (await guest.json("/v1/handles/openai"))["value"] != first["value"]


async def test_an_identity_gets_what_its_session_was_granted(guest: Guest) -> None:
    """The tool's session has no AWS credential, so there is no role for it, nor a handle."""
    assert (await guest.json("/v1/handles", guest.tool))["handles"] == ["openai"]
    assert (await guest.get("/v1/handles/aws", guest.tool))[0] == 404
    assert (await guest.get(ROLES, guest.tool))[0] == 404
    assert (await guest.get(ROLES + "aws", guest.tool))[0] == 404
    for path in ("/v1/handles/", "/v1/handles/../identity", "/v1/handles/%61ws", "/v1", "/"):
        assert (await guest.get(path))[0] == 404, path


async def test_aws_keys_in_both_shapes(guest: Guest) -> None:
    """The default role is the one called `aws`; the stand-in pair's session token is the handle."""
    assert (await guest.get(ROLES)) == (200, b"aws")
    role = await guest.json(ROLES + "aws")
    assert (role["Code"], role["Type"]) == ("Success", "AWS-HMAC")
    assert role["Token"].startswith("cch_") and role["AccessKeyId"].startswith("CCHA")
    assert role["LastUpdated"] < role["Expiration"]
    status, _, body = await ask(guest.agent, request("GET", "/v1/aws/credentials", host="169.254.170.2"))
    assert status == 200
    assert json.loads(body) == {k: role[k] for k in ("AccessKeyId", "SecretAccessKey", "Token", "Expiration")}
    status, body = await guest.get("/v1/aws/credentials/backup")
    assert status == 200 and json.loads(body)["Token"] != role["Token"]


async def test_aws_keys_hold_for_longer_than_botocore_extends_them(guest: Guest) -> None:
    """botocore goes on with an instance role's keys past their end when they had 20 minutes or less."""
    for ahead in (0, 900, 1790, 1810, 3590):
        guest.now[0] = ahead
        left = (await guest.json(ROLES + "aws"))["Expiration"]
        seconds = time.mktime(time.strptime(left, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
        assert seconds - time.time() - (ahead if ahead < 1800 else 0) > 1200


async def test_the_containers_host_needs_no_token_but_a_shown_one_must_hold(guest: Guest) -> None:
    """With AWS_CONTAINER_AUTHORIZATION_TOKEN or without; and it has nothing but credentials."""
    variables = guest.service.environment(guest.who)
    good = variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
    assert variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == "http://169.254.170.2/v1/aws/credentials"
    path, host = "/v1/aws/credentials", "169.254.170.2"
    assert (await ask(guest.agent, request("GET", path, f"Authorization: {good}", host=host)))[0] == 200
    assert (await ask(guest.agent, request("GET", path, "Authorization: wrong", host=host)))[0] == 401
    assert (await ask(guest.tool, request("GET", path, f"Authorization: {good}", host=host)))[0] == 401
    assert (await ask(guest.agent, request("GET", path, f"Authorization: {good}")))[0] == 401
    for elsewhere in ("/v1/identity", "/v1/handles/openai", ROLES):
        assert (await ask(guest.agent, request("GET", elsewhere, host=host)))[0] == 404
    assert (await ask(guest.agent, request("PUT", "/latest/api/token", f"{TTL_HEADER}: 9", host=host)))[
        0
    ] == 404


async def test_a_token_in_a_processs_environment_holds_where_its_process_goes_on(guest: Guest) -> None:
    """After a fork, a restore, a wake: the process cannot be told another, and its SDK asks with this one. In
    a sandbox that its process does not come from, and as another identity, it is worth nothing."""
    before = Client("agent", "ses_of_the_parent")
    for key, ancestors, name, status in (
        (b"k" * 32, [before.session, "ses_older"], "agent", 200),
        (b"k" * 32, ["ses_older"], "agent", 401),
        (b"k" * 32, [], "agent", 401),
        (b"o" * 32, [before.session], "agent", 401),
        (b"k" * 32, [before.session], "tool", 401),
    ):
        token = LastingTokens(lambda: b"k" * 32).issue(name, before.session)
        guest.service.lasting = LastingTokens(partial(bytes, key), ancestors)
        guest.service.environment(guest.who)
        asked = request("GET", "/v1/aws/credentials", f"Authorization: {token}", host="169.254.170.2")
        assert (await ask(guest.agent, asked))[0] == status, (ancestors, name)
        at_imds = request("GET", "/v1/identity", f"{SESSION}: {token}")
        assert (await ask(guest.agent, at_imds))[0] == 401  # these can be had anew, and must be


async def test_a_session_that_is_over_gets_nothing(guest: Guest) -> None:
    """Not even the handle that it was given a moment ago."""
    await guest.json("/v1/handles/openai")
    guest.daemon.state.revoke(guest.who.session, "uid:0", "test")
    guest.now[0] = 2
    status, body = await guest.get("/v1/handles/openai")
    assert (status, json.loads(body)["error"]["reason"]) == (403, "session_over")
    assert (await guest.get("/v1/identity"))[0] == 403


async def test_a_daemon_that_is_gone_is_told_and_nothing_of_it(guest: Guest) -> None:
    """503, without a path or a word of the host's."""
    assert guest.daemon.control is not None
    await asyncio.to_thread(guest.daemon.control.stop)
    status, body = await guest.get("/v1/identity")
    assert status == 503 and b"sock" not in body and b"/" not in body.replace(b"\\/", b"/")


async def test_the_daemon_is_asked_once_for_a_hundred_questions(guest: Guest) -> None:
    """What a guest can make the daemon do is bounded by the clock, not by the guest."""
    token = await guest.token()
    one = request("GET", "/v1/handles/openai", f"{SESSION}: {token}")
    await asyncio.gather(*(ask(guest.agent, one) for _ in range(50)))
    assert guest.control.minted == 1 and guest.control.shown <= 5
