"""curl, wget and pip resume a download: of the searched whole they get what they lack, redacted."""

import asyncio
import os
import shutil
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.daemon import running_daemon
from tests.ports import free_port
from tests.system.e2e.inside import Inside, inside
from tests.system.e2e.story import policy, until
from tests.upstreams import UpstreamTls

FILE = "download.bin"
PIECE = 1_000_003
"""The length of what comes before the secret in the file: no boundary of anything."""

NGINX = """
daemon off; {user} pid {place}/nginx.pid; error_log {place}/error.log;
events {{}}
http {{
  log_format said '$status "$http_range" "$http_accept_encoding"';
  access_log {place}/access.log said;
  client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
  types {{ text/plain txt; }}
  gzip on; gzip_types *; gzip_min_length 1;
  server {{
    listen 127.0.0.1:{port} ssl; ssl_certificate {certificate}; ssl_certificate_key {key}; root {place}/files;
  }}
}}
"""


@dataclass
class Downloads:
    """A sandbox, an nginx with a file in which the secret stands, and what nginx was asked."""

    client: Inside
    place: Path
    content: bytes
    redacted: bytes

    def asked(self) -> list[str]:
        return (self.place / "access.log").read_text().splitlines()


@pytest.fixture
async def downloads(
    place: Path, tmp_path: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> AsyncIterator[Downloads]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    secret, served = real_keys["openai"].encode(), tmp_path / "nginx"
    (served / "files").mkdir(parents=True)
    served.chmod(0o755)
    content = b"a" * PIECE + b"\n" + secret + b"\n" + b"z" * PIECE
    redacted = content.replace(secret, b"*" * len(secret))
    (served / "files" / FILE).write_bytes(content)
    with zipfile.ZipFile(served / "files" / "resumed-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("resumed.py", "x = 1\n" * 200_000)
        wheel.writestr(
            "resumed-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: resumed\nVersion: 1.0\n"
        )
        wheel.writestr(
            "resumed-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("resumed-1.0.dist-info/RECORD", "")
    port = free_port()
    configuration = served / "nginx.conf"
    configuration.write_text(
        NGINX.format(
            place=served,
            port=port,
            certificate=upstream_tls.certificate,
            key=upstream_tls.key,
            user="user root;" if os.geteuid() == 0 else "",  # its workers read what pytest keeps to itself
        )
    )
    server = await asyncio.create_subprocess_exec(program, "-p", str(served), "-c", str(configuration))
    try:
        await until(lambda: asyncio.to_thread((served / "nginx.pid").exists), bool)
        async with running_daemon(
            place,
            policy(credential="handle: optional").replace("POST", "HEAD"),
            {"memory:secret/openai#api_key": real_keys["openai"]},
            upstream_ca=upstream_tls.ca,
            connect_to={"api.openai.com:443": port},
        ) as daemon:
            client = inside(await daemon.sandbox(), tmp_path / "home")
            yield Downloads(client, served, content, redacted)
    finally:
        server.terminate()
        await server.wait()


URL = f"https://api.openai.com/{FILE}"


@pytest.mark.needs_debian("nginx")
@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("curl", f"curl -sS -C - -o {FILE} {URL}"),
        ("wget", f'wget -q -c --ca-certificate="$SSL_CERT_FILE" -O {FILE} {URL}'),
    ],
)
@pytest.mark.parametrize("have", [PIECE // 2, PIECE + 20])
async def test_the_rest_of_a_file_is_what_is_missing(
    downloads: Downloads, program: str, command: str, have: int
) -> None:
    """From the middle of what is redacted, too. The upstream was asked for all of it, uncompressed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    half = downloads.client.home / FILE
    half.write_bytes(downloads.redacted[:have])
    ran = await downloads.client.run("sh", "-c", command)
    assert ran.code == 0, ran.output
    assert half.read_bytes() == downloads.redacted
    assert downloads.asked() == ['200 "-" "identity"']


@pytest.mark.needs_debian("nginx", "curl")
async def test_what_cannot_be_had_is_said_as_a_server_says_it(downloads: Downloads) -> None:
    """416 with the length; If-Range with another version, and several ranges, get the whole."""

    async def ask(*options: str) -> str:
        ran = await downloads.client.run("curl", "-sS", "-o", "/dev/null", "-D", "-", *options, URL)
        assert ran.code == 0, ran.output
        return ran.output.lower()

    size = len(downloads.content)
    beyond = await ask("-r", f"{size}-")
    assert " 416 " in beyond and f"content-range: bytes */{size}" in beyond
    part = await ask("-r", "5-9")
    assert " 206 " in part and f"content-range: bytes 5-9/{size}" in part and "content-length: 5" in part
    etag = next(line for line in part.splitlines() if line.startswith("etag:")).partition(": ")[2]
    assert " 206 " in await ask("-r", "5-9", "-H", f"If-Range: {etag}")
    assert " 200 " in await ask("-r", "5-9", "-H", 'If-Range: "another"')
    assert " 200 " in await ask("-r", "0-1,5-6")
    assert all(line.startswith('200 "-"') for line in downloads.asked())


@pytest.mark.needs_debian("nginx")
async def test_pip_reads_a_wheel_in_ranges(downloads: Downloads) -> None:
    """`fast-deps` fetches the end of a wheel for its metadata: what pip's own resumption uses, too."""
    script = (
        "from pip._internal.network.lazy_wheel import dist_from_wheel_url\n"
        "from pip._internal.network.session import PipSession\n"
        "url = 'https://api.openai.com/resumed-1.0-py3-none-any.whl'\n"
        "print('read', dist_from_wheel_url('resumed', url, PipSession()).version)\n"
    )
    ran = await downloads.client.run("python3", "-c", script)
    assert "read 1.0" in ran.output, ran.output
    assert all(line.startswith('200 "-"') for line in downloads.asked())
