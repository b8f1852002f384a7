"""Git over HTTPS: one private repository behind Basic authentication, served by `git http-backend`.

    async with git_server(certificate, key, repository, token) as server:
        … git clone https://x-access-token:TOKEN@localhost:{server.port}/{repository.name} …

The password must be the real token, whatever the user name, as at the large git hosts. Without one, or with
a wrong one, the answer is 401 and a challenge: git sends what it holds only when asked.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from aiohttp import web

from demo.upstreams.seen import Ledger, Seen, credential_of
from demo.upstreams.server import LEDGER, TlsServer

KEY = "github"
_SERVICES = ("git-upload-pack", "git-receive-pack")
# What http-backend needs to find git's programs and nothing else: no configuration of whoever runs this.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_HTTP_EXPORT_ALL": "1",
    "REMOTE_USER": "demo",
}


class GitMissing(Exception):
    """There is no git on this machine."""


def make_repository(path: Path, files: dict[str, str]) -> None:
    """A bare repository at `path` whose branch `main` holds `files` (name -> text) in one commit."""
    _git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
    _git("-C", str(path), "config", "http.receivepack", "true")
    stream = "commit refs/heads/main\ncommitter Demo <demo@example.com> 1700000000 +0000\ndata 5\nFirst\n"
    for name, text in files.items():
        stream += f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n"
    _git("-C", str(path), "fast-import", "--quiet", text=stream)


def git_server(
    certificate: Path,
    key: Path,
    repository: Path,
    token: str,
    *,
    names: Collection[str] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    on_seen: Callable[[Seen], None] | None = None,
) -> TlsServer:
    """The server, not yet started, for the bare repository at `repository`."""

    async def smart_protocol(request: web.Request) -> web.StreamResponse:
        if not request.app[LEDGER].name_of(credential_of(request.headers, {}), [KEY]):
            raise web.HTTPUnauthorized(
                text="Authentication failed.\n",
                headers={"WWW-Authenticate": 'Basic realm="private repository"'},
            )
        return await _backend(request, repository)

    app = web.Application()
    base = f"/{repository.name}"
    app.router.add_get(base + "/info/refs", smart_protocol)
    for service in _SERVICES:
        app.router.add_post(f"{base}/{service}", smart_protocol)
    return TlsServer(
        app, Ledger({KEY: token}), certificate, key, names=names, host=host, port=port, on_seen=on_seen
    )


def _git(*arguments: str, text: str = "") -> None:
    if shutil.which("git") is None:
        raise GitMissing("git is not installed; the demo's private repository needs it: apt-get install git")
    subprocess.run(
        ["git", *arguments], input=text.encode(), env=_ENVIRONMENT, check=True, capture_output=True
    )


async def _backend(request: web.Request, repository: Path) -> web.StreamResponse:
    """One CGI exchange (RFC 3875) with `git http-backend`, both bodies streamed."""
    process = await asyncio.create_subprocess_exec(
        "git",
        "http-backend",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=_ENVIRONMENT
        | {
            "GIT_PROJECT_ROOT": str(repository.parent),
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        },
    )
    assert process.stdin is not None and process.stdout is not None
    feeding = asyncio.create_task(_feed(request.content.iter_any(), process.stdin))
    try:
        response = web.StreamResponse()
        while line := (await process.stdout.readline()).decode("latin-1").strip():
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                response.set_status(int(value.split()[0]))
            else:
                response.headers[name] = value
        await response.prepare(request)
        while chunk := await process.stdout.read(1 << 16):
            await response.write(chunk)
        await response.write_eof()
        return response
    finally:
        feeding.cancel()
        if process.returncode is None:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _feed(body: AsyncIterator[bytes], stdin: asyncio.StreamWriter) -> None:
    try:
        async for chunk in body:
            stdin.write(chunk)
            await stdin.drain()
    except ConnectionError:
        pass  # the backend has read enough and answered
    finally:
        stdin.close()
