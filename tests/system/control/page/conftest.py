"""The page's paths as a browser uses them, without a browser."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.control.page.provider import CLIENT, Provider, serving
from tests.system.control.conftest import CALLERS, Answer, Control, Ground, running_control, token_of
from tests.upstreams import UpstreamTls

ADA = {"role": "operator", "tenants": ["acme"], "oidc_email": "ada@example.com"}
BY_OIDC = {
    "ada": ADA,
    "on-call": {"role": "auditor", "tenants": ["*"], "oidc_group": "on-call"},
    "grace": {"role": "auditor", "tenants": ["acme"], "oidc_subject": "u-2"},
}
"""Callers whom the OpenID provider proves."""


def origin(control: Control) -> str:
    return f"http://127.0.0.1:{control.address[1]}"


def headers(control: Control, **more: str | None) -> dict[str, str | None]:
    """What a browser says of the page's own requests."""
    said: dict[str, str | None] = {"Origin": origin(control), "Sec-Fetch-Site": "same-origin"}
    return said | {name.replace("_", "-"): value for name, value in more.items()}


@dataclass(frozen=True, slots=True)
class Window:
    """A browser that is logged in."""

    control: Control
    cookie: str = field(repr=False)
    key: str = field(repr=False)

    @property
    def proof(self) -> dict[str, str | None]:
        return {"Cookie": self.cookie, "Coatcheck-Page": self.key}

    async def ask(
        self, method: str, path: str, body: Any = None, but: Mapping[str, str | None] | None = None
    ) -> Answer:
        sent = headers(self.control) | self.proof | dict(but or {})
        return await self.control.ask(method, path, body=body, headers=sent)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator["Stream"]:
        """The live answer, as long as the block lasts."""
        stream = await asyncio.to_thread(Stream, self)
        try:
            yield stream
        finally:
            stream.close()

    async def now(self, holds: Callable[[dict[str, Any]], object] = bool) -> dict[str, Any]:
        """What there is now, once that `holds`."""
        async with asyncio.timeout(60), self.watching() as stream:
            assert stream.status == 200
            while not holds(now := await stream.first("now")):
                pass
            return now


class Stream:
    def __init__(self, window: Window) -> None:
        self._connection = http.client.HTTPConnection(*window.control.address, timeout=30)
        sent = {"Sec-Fetch-Site": "same-origin", "Cookie": window.cookie, "Coatcheck-Page": window.key}
        self._connection.request("GET", "/page/live", headers=sent)
        self.response = self._connection.getresponse()
        self.status = self.response.status

    async def line(self) -> dict[str, Any] | None:
        """The next one; None at the end."""
        line = await asyncio.to_thread(self.response.readline)
        return json.loads(line) if line else None

    async def first(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next line of this kind and with these fields."""
        while (line := await self.line()) is not None:
            if line["kind"] == kind and all(line.get(name) == value for name, value in fields.items()):
                return line
        raise AssertionError(f"the stream ended without {kind} {fields}")

    def close(self) -> None:
        self._connection.close()


async def log_in(control: Control, caller: str = "operator") -> Window:
    said = headers(control)
    answer = await control.ask("POST", "/page/login", body={"token": token_of(caller)}, headers=said)
    assert answer.status == 200, answer.body
    return Window(control, answer.headers["set-cookie"].partition(";")[0], answer.json["key"])


@pytest.fixture
def provider(upstream_tls: UpstreamTls) -> Iterator[Provider]:
    with serving(upstream_tls) as running:
        yield running


@pytest.fixture
async def oidc(ground: Ground, provider: Provider) -> AsyncIterator[Control]:
    """A daemon with CALLERS and BY_OIDC, where people may log in at the provider."""
    settings = {
        "page_oidc_issuer": provider.issuer,
        "page_oidc_client_id": CLIENT,
        "page_oidc_ca_file": ground.upstream_ca,
    }
    async with running_control(ground, {**CALLERS, **BY_OIDC}, **settings) as running:
        provider.redirect_uris = {f"{running.url}/page/oidc/callback"}
        yield running
