"""Origins and listeners as they are asked for, and nothing left behind when one cannot be had."""

import asyncio
import base64
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from coatcheck.decision.message import Origin, OriginClass
from coatcheck.state.database import Status
from demo.upstreams.server import TlsServer
from tests.planes.attack import eventually
from tests.system.control.conftest import Control

SHA = "ab" * 32


@pytest.mark.parametrize(
    ("origin", "listen", "status", "reason"),
    [
        (None, None, 201, ""),
        (None, "unix", 201, ""),
        (None, "tcp", 201, ""),
        (None, "sandbox", 201, ""),
        (None, "none", 201, ""),
        ({"class": "socket"}, "tcp", 201, ""),
        ({"class": "mtls", "value": SHA}, None, 201, ""),
        ({"class": "mtls", "value": SHA}, "none", 201, ""),
        ({"class": "token", "value": "https://issuer|pod-uid"}, None, 201, ""),
        ({"class": "address", "value": "proxy|10.1.2.3"}, None, 201, ""),
        ({"class": "address", "value": "proxy|fe80::1"}, None, 201, ""),
        ({"class": "bearer"}, None, 201, ""),
        ({"class": "socket", "value": "ses_0123"}, None, 400, "bad_value"),
        ({"class": "bearer", "value": SHA}, None, 400, "bad_value"),
        ({"class": "mtls"}, None, 400, "bad_value"),
        ({"class": "mtls", "value": SHA.upper()}, None, 400, "bad_value"),
        ({"class": "mtls", "value": SHA}, "tcp", 400, "bad_value"),
        ({"class": "mtls", "value": SHA}, "sandbox", 400, "bad_value"),
        ({"class": "address", "value": "transparent|10.1.2.3"}, None, 409, "no_shared_listener"),
        ({"class": "address", "value": "10.1.2.3"}, None, 400, "bad_value"),
        ({"class": "address", "value": "proxy|010.1.2.3"}, None, 400, "bad_value"),
        ({"class": "address", "value": "proxy|10.1.2.3|x"}, None, 400, "bad_value"),
        ({"class": "address", "value": "proxy|FE80::1"}, None, 400, "bad_value"),
        ({"class": "token", "value": "|uid"}, None, 400, "bad_value"),
        ({"class": "guess", "value": "x"}, None, 400, "malformed"),
        ({}, None, 400, "malformed"),
    ],
)
async def test_origin_and_listener_belong_together(
    control: Control, origin: dict[str, str] | None, listen: str | None, status: int, reason: str
) -> None:
    """What cannot prove a session is refused before one is made."""
    answer = await control.open("any-origin", origin=origin, listen=listen)
    assert answer.status == status, answer.body
    if reason:
        assert answer.reason == reason
        assert not control.daemon.state.sessions.by_id


async def test_an_origin_class_must_be_granted(control: Control) -> None:
    """ci-launcher's grant names none, so it has sockets only."""
    answer = await control.open(origin={"class": "bearer"})
    assert (answer.status, answer.reason) == (403, "forbidden")


async def test_an_origin_proves_one_session(control: Control) -> None:
    """The second caller is told."""
    origin = {"class": "mtls", "value": SHA}
    assert (await control.open("any-origin", origin=origin)).status == 201
    answer = await control.open("any-origin", origin=origin)
    assert (answer.status, answer.reason) == (409, "origin_taken")


async def test_a_proxy_password_works_and_is_kept_as_its_hash(
    control: Control, origin_server: TlsServer
) -> None:
    """It is shown once, in the URL; real credentials refuse this class unless policy says otherwise."""
    opened = (await control.open("any-origin", origin={"class": "bearer"})).json
    url = opened["proxy"]["url"]
    password = urlsplit(url).password
    assert password and opened["environment"]["HTTPS_PROXY"] == url
    assert password not in str(opened["session"])
    shown = await control.ask("GET", f"/v1/sessions/{opened['session']['id']}", caller="any-origin")
    assert password.encode() not in shown.body
    assert shown.json["proxy"]["url"] == url.replace(f"sandbox:{password}@", "")
    trust = ssl.create_default_context(cafile=opened["proxy"]["ca"])
    async with httpx.AsyncClient(proxy=url, verify=trust) as http:
        assert (await http.get("https://upstream.example/")).status_code < 500
        handle = opened["handles"]["openai"]["value"]
        refused = await http.get(
            "https://api.openai.com/v1/models", headers={"Authorization": f"Bearer {handle}"}
        )
    assert refused.status_code == 401
    assert refused.json()["error"]["reason"] == "origin_class_refused"
    wrong = base64.b64encode(b"sandbox:wrong").decode()
    reader, writer = await asyncio.open_connection(*control.daemon.proxy_address or ("", 0))
    target = "upstream.example:443"
    writer.write(
        f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {wrong}\r\n\r\n".encode()
    )
    assert (await reader.readline()).split()[1] == b"407"
    writer.close()


@pytest.mark.parametrize("control", [{"proxy_port": None}], indirect=True)
async def test_without_a_shared_listener_there_are_sockets_only(control: Control) -> None:
    """The answer says what to set."""
    answer = await control.open("any-origin", origin={"class": "bearer"})
    assert (answer.status, answer.reason) == (409, "no_shared_listener")
    assert "COATCHECK_PROXY_PORT" in answer.json["error"]["hint"]


@pytest.mark.parametrize(
    "control",
    [{"proxy_port": None, "transparent_port": 0, "transparent_trust_addresses": True}],
    indirect=True,
)
async def test_who_is_redirected_has_no_proxy_to_be_told_of(control: Control) -> None:
    """The session's clients know of none: no URL, no proxy variables. Other classes still want a proxy."""
    opened = await control.open("any-origin", origin={"class": "address", "value": "transparent|10.1.2.3"})
    assert opened.status == 201, opened.body
    assert opened.json["proxy"]["url"] is None
    assert not [name for name in opened.json["environment"] if "PROXY" in name.upper()]
    path = f"/v1/sessions/{opened.json['session']['id']}"
    assert (await control.ask("GET", path, caller="any-origin")).json["proxy"] == opened.json["proxy"]
    answer = await control.open("any-origin", origin={"class": "address", "value": "proxy|10.1.2.3"})
    assert (answer.status, answer.reason) == (409, "no_shared_listener")


async def test_a_whole_sandbox_gets_three_sockets(control: Control) -> None:
    """They are named in the answer and later, and gone with the session."""
    opened = (await control.open(listen="sandbox")).json
    proxy = opened["proxy"]
    assert proxy["transparent"] == proxy["url"] + ".t"
    assert proxy["dns"] == proxy["url"] + ".d"
    paths = [Path(urlsplit(proxy[name]).path) for name in ("url", "transparent", "dns")]
    assert all(path.is_socket() for path in paths)
    session = f"/v1/sessions/{opened['session']['id']}"
    assert (await control.ask("GET", session, caller="ci-launcher")).json["proxy"] == proxy
    assert (await control.ask("POST", f"{session}/end", caller="ci-launcher", body={})).status == 200
    await eventually(lambda: not any(path.exists() for path in paths))
    one = (await control.open(listen="unix")).json["proxy"]
    assert (one["transparent"], one["dns"]) == (None, None)


async def test_a_listener_that_cannot_be_opened_leaves_no_session(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that was told of a failure will not end what it does not know of."""

    async def full(session_id: str) -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(control.daemon.listeners, "open_tcp", full)
    answer = await control.open(listen="tcp")
    assert (answer.status, answer.reason) == (503, "listener")
    assert [control.daemon.state.status(each) for each in control.daemon.state.sessions.by_id] == [
        Status.ENDED
    ]


async def test_a_session_that_is_revoked_while_it_opens_gets_no_listener(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revocation came when there was no listener to close."""
    listeners = control.daemon.listeners
    assert listeners is not None
    really = listeners.open_tcp

    async def slowly(session_id: str) -> tuple[str, int]:
        address = await really(session_id)
        control.daemon.state.revoke(session_id, "operator")
        return address

    monkeypatch.setattr(listeners, "open_tcp", slowly)
    answer = await control.open(listen="tcp")
    assert (answer.status, answer.reason) == (409, "session_closed")
    assert [listeners.endpoint(each) for each in control.daemon.state.sessions.by_id] == [None]


async def test_a_sessions_own_socket_proves_it(control: Control) -> None:
    """The default: a Unix socket named after the session, whose origin is the session's id."""
    opened = (await control.open()).json
    session = control.daemon.state.session(opened["session"]["id"])
    assert session.origin == Origin(OriginClass.SOCKET, session.id)
    assert opened["proxy"]["url"].startswith("unix://")
    assert "HTTPS_PROXY" not in opened["environment"]
