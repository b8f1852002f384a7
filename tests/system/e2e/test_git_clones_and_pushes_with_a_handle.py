"""git clones from and pushes to a private repository with a handle as its password."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.daemon import TestDaemon, running_daemon
from tests.system.e2e.inside import Inside
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("git")

POLICY = """
version: 1
owner: tests
credentials:
  github:
    secret: memory:secret/github#token
    hosts: [github.com]
    inject: {basic: {username: x-access-token}}
    env: GITHUB_TOKEN
    SHAPE
rules:
  - name: git
    hosts: [github.com]
    methods: [GET, POST]
    paths: [/private.git/**]
    credentials: [github]
"""

QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Agent",
    "GIT_AUTHOR_EMAIL": "agent@example.com",
    "GIT_COMMITTER_NAME": "Agent",
    "GIT_COMMITTER_EMAIL": "agent@example.com",
}


@pytest.fixture(params=["", "shape: {prefix: ghp_, length: 36}"], ids=["signed", "reference"])
async def daemon(
    request: pytest.FixtureRequest,
    place: Path,
    git_host: TlsServer,
    upstream_tls: UpstreamTls,
    git_token: str,
) -> AsyncIterator[TestDaemon]:
    async with running_daemon(
        place,
        POLICY.replace("SHAPE", request.param),
        {"memory:secret/github#token": git_token},
        upstream_ca=upstream_tls.ca,
        connect_to={"github.com:443": git_host.port},
    ) as running:
        yield running


async def git(client: Inside, script: str) -> str:
    ran = await client.run("sh", "-exc", script, **QUIET)
    assert ran.code == 0, ran.output
    return ran.output


async def test_clone_commit_and_push(
    client: Inside, daemon: TestDaemon, git_host: TlsServer, tmp_path: Path
) -> None:
    """The handle stands in the URL; git sends it only after the proxy's challenge, as at the real hosts.

    The commit arrives in the upstream repository, whose every served request carried the real token.
    """
    await git(
        client,
        'git clone -q "https://x-access-token:$GITHUB_TOKEN@github.com/private.git" work\n'
        "cd work && cat README && echo more >> README && git commit -qam 'From the sandbox'\n"
        "git push -q origin HEAD:main",
    )
    pushed = await client.run("git", "-C", str(tmp_path / "upstream/private.git"), "log", "--format=%s")
    assert pushed.output.splitlines() == ["From the sandbox", "First"]
    assert git_host.seen and {seen.genuine for seen in git_host.seen} == {"github"}
    first, *_, last = daemon.decisions()
    assert (first["reason"], first["outcome"]) == ("handle_missing", "deny")
    assert last["credentials"] == ["github"] and last["outcome"] == "inject"


async def test_a_credential_helper_gives_the_handle(client: Inside, git_host: TlsServer) -> None:
    """git asks its helper when it is challenged, and never writes the handle into .git/config."""
    await git(
        client,
        "git config --global credential.helper "
        "'!f() { echo username=x-access-token; echo \"password=$GITHUB_TOKEN\"; }; f'\n"
        "git clone -q https://github.com/private.git work\n"
        'test -f work/src/main.c && ! grep -r "$GITHUB_TOKEN" work/.git',
    )
    assert {seen.genuine for seen in git_host.seen} == {"github"}


async def test_a_handle_pushes_nowhere_else(client: Inside, git_host: TlsServer) -> None:
    """Another repository of the same host is outside the rule: refused, and the host saw nothing."""
    ran = await client.run(
        "sh", "-c",
        'git ls-remote "https://x-access-token:$GITHUB_TOKEN@github.com/somebody/else.git"',
        **QUIET,
    )  # fmt: skip
    assert ran.code != 0 and "403" in ran.output
    assert git_host.seen == []
