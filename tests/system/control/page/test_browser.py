"""Which requests are the page's, and how its cookie is named where there is TLS."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from coatcheck.control.page.browser import is_page
from tests.daemon import running_daemon
from tests.system.control.conftest import CALLERS, grants_toml, token_of
from tests.upstreams import UpstreamTls


@pytest.mark.parametrize("path", ["/", "/?x", "/page", "/page?x", "/page/", "/page/app.js", "/page/v1/x?y"])
def test_the_page_has_paths_of_its_own(path: str) -> None:
    """All below one prefix."""
    assert is_page(path)


@pytest.mark.parametrize(
    "path", ["/v1/sessions", "/v1/page", "/pages", "/pagev1", "//page/", "/healthz", "*", ""]
)
def test_they_are_not_the_control_apis(path: str) -> None:
    """What looks alike is not the page's: browsers are refused there."""
    assert not is_page(path)


async def test_over_tls_the_cookie_cannot_be_set_by_another_host(
    short_dir: Path, all_output: Path, upstream_tls: UpstreamTls
) -> None:
    """`__Host-`, Secure, and the origin is https; an http origin of the same name is another one."""
    ca = trustme.CA()
    pem, grants = short_dir / "control.pem", short_dir / "grants.toml"
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    grants.write_text(grants_toml(CALLERS))
    context = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    async with running_daemon(
        all_output / short_dir.name,
        "version: 1\nowner: tests\n",
        upstream_ca=upstream_tls.ca,
        connect_to={},
        control_port=0,
        control_grants=grants,
        control_tls_certificate=pem,
    ) as daemon:
        assert daemon.control is not None
        host, port = daemon.control.addresses[0]

        async def login(scheme: str) -> str:
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname="localhost"
            )
            body = f'{{"token": "{token_of("operator")}"}}'
            writer.write(
                f"POST /page/login HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: {scheme}://localhost:{port}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            writer.close()
            return head.decode()

        refused, taken = await login("http"), await login("https")
    assert refused.startswith("HTTP/1.1 403")
    cookie = next(line for line in taken.split("\r\n") if line.startswith("Set-Cookie: "))
    assert cookie.startswith("Set-Cookie: __Host-coatcheck=")
    assert cookie.endswith("; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=28800")
