"""The metadata service: what the guest finds at 169.254.169.254, answered here on the host.

Whose request it is says the channel (the guest's kernel tells the user, and we named the users), never the
request. It is reached by streams of the guest only: as a destination the proxy refuses these addresses.

    PUT /latest/api/token                               a token; all others want it, as in IMDSv2
    GET /v1/identity  /v1/lease  /v1/limits             who and how long and how much
    POST /v1/scale                                      more or less of it
    GET /v1/handles  /v1/handles/CREDENTIAL             names; a handle of minutes
    GET /latest/meta-data/instance-id                   the sandbox's id
    GET /latest/meta-data/iam/security-credentials/…    AWS keys of the instance's role
    GET /v1/aws/credentials  /v1/aws/credentials/CREDENTIAL   the same for containers, on 169.254.170.2 too
"""

import json
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from coatcheck.client.control import ControlClient
from coatcheck.decision.ratelimit import Rate, Rates
from coatcheck.metadata.aws import (
    CONTAINER,
    ROLES,
    container_credentials,
    container_environment,
    default_role,
    instance_role,
    role_list,
)
from coatcheck.metadata.handles import Handles
from coatcheck.metadata.http import CONTAINER_HOST, Answer, Client, Connections, MetadataRequest, Refused
from coatcheck.metadata.tokens import MAX_TTL, LastingTokens, Tokens

TOKEN_PATH: Final = "/latest/api/token"
TOKEN_HEADER: Final = "x-aws-ec2-metadata-token"
TTL_HEADER: Final = "x-aws-ec2-metadata-token-ttl-seconds"
RATE: Final = Rate(count=20, period=1.0, burst=100)
"""Of one identity. An SDK asks three times an hour; a loop in a shell asks without end."""
MAX_IDENTITIES: Final = 64
"""Whose rates are kept."""

_log = logging.getLogger(__name__)


type Action = Callable[[MetadataRequest, str], Awaitable[Answer]]
"""A request, and the identity whose it is. It raises Refused."""


class MetadataService:
    """Of one sandbox. Belongs to the supervisor's event loop."""

    def __init__(
        self,
        control: ControlClient,
        sandbox: str,
        limits: Callable[[], Mapping[str, object]] = dict,
        *,
        actions: Mapping[str, Action] | None = None,
        handles: Handles | None = None,
        lasting: LastingTokens | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limits`: what `/v1/limits` answers. `actions`: what else is done by POST, by its path, as a layer
        above can. `handles`: for other lifetimes than the usual ones. `lasting`: for variables of processes
        that may go on in another sandbox; None: they cannot."""
        self._sandbox = sandbox
        self._limits = limits
        self._actions = actions or {}
        self._handles = handles or Handles(control)
        self._clock = clock
        self.tokens = Tokens(clock)
        key = secrets.token_bytes(32)
        self.lasting = lasting or LastingTokens(lambda: key)
        self._rates: Rates[str] = Rates(RATE, MAX_IDENTITIES)
        self._connections = Connections(self._answer)

    async def serve(self, connected: socket.socket, who: Client) -> None:
        """Answer one connection of the guest, which is ours from now on."""
        await self._connections.serve(connected, who)

    def environment(self, who: Client) -> dict[str, str]:
        """Variables with which AWS SDKs find their keys here, instead of AWS_ACCESS_KEY_ID and its like."""
        return container_environment(self.lasting.issue(who.name, who.session))

    async def close(self) -> None:
        await self._connections.close()
        self._handles.close()

    # --- one request -----------------------------------------------------------------------------------

    async def _answer(self, request: MetadataRequest, who: Client) -> Answer:
        if self._rates.wait(who.name, self._clock()):
            raise Refused(429, "too_many_requests", "wait a second", ("Retry-After", "1"))
        if request.path == TOKEN_PATH:
            return self._token(request, who)
        self._check_token(request, who)
        action = self._actions.get(request.path)
        method = "GET" if action is None else "POST"
        if request.method != method:
            raise Refused(405, "method_not_allowed", f"this is asked with {method}", ("Allow", method))
        try:
            if action is not None:
                await self._handles.show(who.session)  # of a session that is over nothing changes any more
                return await action(request, who.name)
            return await self._resource(request.path, who)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours must not end the sandbox's channel
            _log.error("a metadata request failed", extra={"error": type(error).__name__})
            raise Refused(500, "internal", "the metadata service failed") from None

    def _token(self, request: MetadataRequest, who: Client) -> Answer:
        if request.method != "PUT":
            raise Refused(405, "method_not_allowed", "a token is made with PUT", ("Allow", "PUT"))
        if request.host == CONTAINER_HOST:
            raise Refused(404, "not_found", "there is no such resource")
        ttl = request.headers.get(TTL_HEADER, "")
        if not (ttl.isascii() and ttl.isdigit() and len(ttl) <= 5 and 1 <= int(ttl) <= MAX_TTL):
            raise Refused(400, "bad_ttl", f"{TTL_HEADER} must be 1 to {MAX_TTL}")
        token = self.tokens.issue(who.name, int(ttl))
        return Answer(200, token.encode(), "text/plain", ((TTL_HEADER, ttl),))

    def _check_token(self, request: MetadataRequest, who: Client) -> None:
        """On the containers' host SDKs need none; one that is shown there must hold all the same."""
        at_containers = request.host == CONTAINER_HOST
        if at_containers and request.path != CONTAINER and not request.path.startswith(f"{CONTAINER}/"):
            raise Refused(404, "not_found", "there is no such resource")
        token = request.headers.get("authorization" if at_containers else TOKEN_HEADER)
        if token is None and at_containers:
            return
        if at_containers and token and self.lasting.holds(who.name, who.session, token):
            return
        if token is None or not self.tokens.holds(who.name, token):
            raise Refused(401, "token_required", f"get a token first: PUT {TOKEN_PATH} with {TTL_HEADER}")

    # --- resources ---------------------------------------------------------------------------------------

    async def _resource(self, path: str, who: Client) -> Answer:
        if path == "/v1/limits":
            return _json(self._limits())
        shown = await self._handles.show(who.session)
        session: dict[str, Any] = shown["session"]
        match path:
            case "/v1/identity":
                named = {
                    name: session[name] for name in ("tenant", "subject", "policy", "generation", "isolation")
                }
                return _json(
                    {"sandbox": self._sandbox, "identity": who.name, "session": session["id"], **named}
                )
            case "/v1/lease":
                return _json({name: session[name] for name in ("lease_expires_at", "expires_at")})
            case "/v1/handles":
                return _json({"handles": session["credentials"]})
            case "/latest/meta-data" | "/latest/meta-data/":
                return _text("iam/\ninstance-id")
            case "/latest/meta-data/instance-id":
                return _text(self._sandbox)
            case "/latest/meta-data/iam" | "/latest/meta-data/iam/":
                return _text("security-credentials/")
            case "/latest/dynamic/instance-identity/document":
                return _json({"instanceId": self._sandbox, "version": "2017-09-30"})
        return await self._credential(path, who, shown)

    async def _credential(self, path: str, who: Client, shown: Mapping[str, Any]) -> Answer:
        parent, _, name = path.rpartition("/")
        if parent == "/v1/handles":
            minted = await self._handles.mint(who.session, name)
            return _json(
                {key: minted.answer[key] for key in ("credential", "value", "expires_at", "environment")}
            )
        names: list[str] = shown["aws"]
        if path in (ROLES, f"{ROLES}/") and names:
            return Answer(200, role_list(names), "text/plain")
        if path == CONTAINER:
            parent, name = CONTAINER, default_role(names) or ""
        if parent not in (ROLES, CONTAINER) or name not in names:
            some = f"; those for AWS are: {', '.join(names)}" if names and parent == CONTAINER else ""
            raise Refused(404, "not_found", f"there is no such resource{some}")
        minted = await self._handles.mint(who.session, name, aws=True)
        if parent == ROLES:
            return Answer(200, instance_role(minted.answer, minted.at))
        return Answer(200, container_credentials(minted.answer))


def _json(value: object) -> Answer:
    return Answer(200, json.dumps(value).encode())


def _text(text: str) -> Answer:
    return Answer(200, text.encode(), "text/plain")
