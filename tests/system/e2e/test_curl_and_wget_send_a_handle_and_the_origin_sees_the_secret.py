"""curl and wget send a handle, and the origin sees the secret."""

import shutil

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.inside import Inside


@pytest.mark.needs_debian("curl")
async def test_curl_gets_an_answer_that_only_the_real_key_opens(
    client: Inside, origin_server: TlsServer
) -> None:
    """The request that the origin took carried the real key; curl knows and shows the handle alone."""
    ran = await client.run(
        "sh", "-c", 'curl -sSv https://api.openai.com/v1/models -H "Authorization: Bearer $OPENAI_API_KEY"'
    )
    assert ran.code == 0 and "HTTP/1.1 200" in ran.output and "gpt-4o-mini" in ran.output
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]
    assert client.environment["OPENAI_API_KEY"].startswith("sk-cch_")


@pytest.mark.needs_debian("curl")
async def test_curl_sees_a_mask_where_the_origin_echoes_the_secret(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """`/echo` sends back every header that it got; headers and body come without the key in them."""
    mask = "*" * len(real_keys["openai"])
    for where in ("body", "header"):
        ran = await client.run(
            "sh", "-c",
            f'curl -sSi "https://api.openai.com/echo?in={where}" -H "Authorization: Bearer $OPENAI_API_KEY"',
        )  # fmt: skip
        assert ran.code == 0 and mask in ran.output
    assert [seen.genuine for seen in origin_server.seen] == ["openai", "openai"]


async def test_wget_gets_it_as_well(client: Inside, origin_server: TlsServer) -> None:
    """wget takes the proxy from the environment, and the CA from a flag alone."""
    if shutil.which("wget") is None:
        pytest.skip("wget is not installed, and nothing else needs it")
    ran = await client.run(
        "sh", "-c",
        'wget -S -O - --ca-certificate="$SSL_CERT_FILE" --header "Authorization: Bearer $OPENAI_API_KEY" '
        "https://api.openai.com/v1/models",
    )  # fmt: skip
    assert ran.code == 0 and "gpt-4o-mini" in ran.output
    assert [seen.genuine for seen in origin_server.seen] == ["openai"]


@pytest.mark.needs_debian("curl")
async def test_curl_without_a_handle_reads_why_it_was_refused(
    client: Inside, origin_server: TlsServer
) -> None:
    """The refusal says what to send instead, and the origin saw nothing."""
    ran = await client.run("curl", "-sSi", "https://api.openai.com/v1/models")
    assert "HTTP/1.1 401" in ran.output and '"reason": "handle_missing"' in ran.output
    assert "environment variable" in ran.output
    assert origin_server.seen == []
