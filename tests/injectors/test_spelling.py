"""Headers and variables that a policy may write, and none that would hand over more than a key."""

import pytest

from coatcheck.injectors.spelling import Wrong, header_name, template
from coatcheck.policy.file.fields import env_name


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "DD-API-KEY", "private-token"])
def test_a_header_for_keys_is_accepted_in_lower_case(name: str) -> None:
    """The core compares lower-case names."""
    assert header_name(name) == name.lower()


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "COOKIE", "Transfer-Encoding", "Proxy-Authorization", "X-Forwarded-For", "Upgrade"),
        *("Range", "Coatcheck-Reason", "", "a b", "a:", "é", ":path"),
    ],
)
def test_a_header_that_steers_the_request_is_refused(name: str) -> None:
    """Routing, framing, connection, cookies, and what is no header name at all."""
    with pytest.raises(Wrong):
        header_name(name)


def test_a_template_has_one_place_for_the_secret() -> None:
    """And nothing that could begin another header."""
    assert template("Bearer {secret}") == "Bearer {secret}"
    for text in (
        "Bearer",
        "{secret} {secret}",
        "{secret}{x}",
        "a\r\nb: {secret}",
        "{secret}\0",
        " {secret}",
        "{secret}é",
    ):
        with pytest.raises(Wrong):
            template(text)


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "GH_TOKEN", "GITHUB_TOKEN", "aws_session_token", "_KEY"])
def test_a_variable_for_keys_is_accepted(name: str) -> None:
    """The names in which clients look."""
    assert env_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "Path", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "PYTHONSTARTUP", "GIT_SSH_COMMAND"),
        *("NODE_OPTIONS", "https_proxy", "SSL_CERT_FILE", "COATCHECK_URL", "A-B", "1A", "", "A\n"),
    ],
)
def test_a_variable_that_changes_how_programs_run_is_refused(name: str) -> None:
    """A handle there would break the sandbox or open it."""
    with pytest.raises(Wrong):
        env_name(name)
