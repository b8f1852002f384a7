import asyncio
import os
from pathlib import Path

import pytest

from demo.upstreams.seen import fingerprint
from demo.upstreams.server import TlsServer
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("git")


class Git:
    """The real git, with no configuration but the test's."""

    def __init__(self, home: Path, ca: Path, host: TlsServer) -> None:
        self._host = host
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "GIT_SSL_CAINFO": str(ca),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "Agent",
            "GIT_AUTHOR_EMAIL": "agent@example.com",
            "GIT_COMMITTER_NAME": "Agent",
            "GIT_COMMITTER_EMAIL": "agent@example.com",
        }

    def url(self, token: str) -> str:
        return f"https://x-access-token:{token}@localhost:{self._host.port}/private.git"

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode or 0, output.decode()


@pytest.fixture
def git(git_host: TlsServer, upstream_tls: UpstreamTls, tmp_path: Path) -> Git:
    return Git(tmp_path, upstream_tls.ca, git_host)


async def test_clone_commit_push_and_clone_again(
    git: Git, git_host: TlsServer, git_token: str, tmp_path: Path
) -> None:
    """The whole round with the real client: what was pushed is there for the next clone."""
    work = tmp_path / "work"
    assert await git("clone", "--quiet", git.url(git_token), str(work)) == (0, "")
    assert (work / "src/main.c").read_text().startswith("int main")
    (work / "large").write_bytes(os.urandom(3 << 20))  # over http.postBuffer: pushed in chunks
    assert (await git("-C", str(work), "add", "large"))[0] == 0
    assert (await git("-C", str(work), "commit", "--quiet", "-m", "second"))[0] == 0
    assert (await git("-C", str(work), "push", "--quiet", "origin", "main"))[0] == 0
    assert (await git("clone", "--quiet", git.url(git_token), str(tmp_path / "again")))[0] == 0
    assert (tmp_path / "again/large").stat().st_size == 3 << 20
    assert {seen.genuine for seen in git_host.seen} == {"", "github"}


async def test_git_is_challenged_before_it_sends_the_token(
    git: Git, git_host: TlsServer, git_token: str, tmp_path: Path
) -> None:
    """As at the real hosts: the first request carries nothing, the 401 makes git send what it holds."""
    await git("clone", "--quiet", git.url(git_token), str(tmp_path / "work"))
    assert [seen.fingerprint for seen in git_host.seen[:2]] == ["", fingerprint(git_token)]


@pytest.mark.parametrize("token", ["wrong", "x"])
async def test_a_wrong_token_clones_nothing(git: Git, tmp_path: Path, token: str) -> None:
    """The repository is private: only the real token opens it."""
    code, output = await git("clone", "--quiet", git.url(token), str(tmp_path / "work"))
    assert code != 0 and "Authentication failed" in output
    assert not (tmp_path / "work").exists()


async def test_only_the_smart_protocol_is_served(git: Git, git_token: str, tmp_path: Path) -> None:
    """No path leads out of the repository, with the real token either."""
    url = git.url(git_token).removesuffix("private.git") + "other.git"
    code, output = await git("clone", "--quiet", url, str(tmp_path / "work"))
    assert code != 0 and "not found" in output
