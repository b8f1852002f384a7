"""One reading of an address, in settings and in what an OpenID provider says of itself."""

import pytest

from coatcheck.platform.web_url import is_web_url, split_url


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https:///x",
        "https://user@x/",
        "https://@x/",
        "https://x/#y",
        "https://x/#",
        "https://x:99999/",
        "https://x:0/",
        "https://x:y/",
        "https://[::1",
        "https://x y/",
        "https://x\ty/",
        "https://x/\n",
        "https://x\\y/",
        "https://é.example/",
        "ftp://x/",
        "javascript:alert(1)",
        "x",
        "",
    ],
)
def test_what_is_no_plain_address_of_a_host_is_none(url: str) -> None:
    """A browser is sent there, or a secret: what two parsers read differently leads nowhere."""
    assert not is_web_url(url)


def test_a_plain_address_is_one() -> None:
    """With a port, a path and a query; over TLS alone, where that is asked for."""
    assert is_web_url("https://x.example:8443/a?b=c", ("https",))
    assert is_web_url("http://[::1]:4318")
    assert not is_web_url("http://x.example/", ("https",))
    parts = split_url("unix://user@/run/redis.sock")
    assert parts is not None
    assert (parts.hostname, parts.username, parts.path) == (None, "user", "/run/redis.sock")
