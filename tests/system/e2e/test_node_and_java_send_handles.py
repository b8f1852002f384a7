"""Node's https and fetch, and Java's HttpClient, send handles."""

import shutil
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.system.e2e.inside import FINISHED, Inside

# Node before 22.21 reads no proxy variable: an agent that asks for a tunnel, as proxy-agent libraries do.
NODE_HTTPS = """
const http = require("node:http"), https = require("node:https"), tls = require("node:tls");
const proxy = new URL(process.env.HTTPS_PROXY);
class TunnelAgent extends https.Agent {
  createConnection(options, done) {
    const to = `${options.host}:${options.port}`;
    const { hostname, port } = proxy;
    http.request({ host: hostname, port, method: "CONNECT", path: to, headers: { host: to } })
      .once("connect", (answer, socket) => done(null, tls.connect({ socket, servername: options.host })))
      .once("error", done).end();
  }
}
const agent = new TunnelAgent({ keepAlive: false });
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "content-type": "application/json" };
function ask(path, body) {
  return new Promise((resolve, reject) => {
    const method = body ? "POST" : "GET";
    const options = { host: "api.openai.com", port: 443, path, agent, headers, method };
    https.request(options, (answer) => {
      let text = "";
      answer.setEncoding("utf8").on("data", (part) => (text += part));
      answer.on("end", () => resolve([answer.statusCode, JSON.stringify(answer.headers), text].join(" ")));
    }).once("error", reject).end(body && JSON.stringify(body));
  });
}
(async () => {
  const messages = [{ role: "user", content: "one two three" }];
  console.log(await ask("/v1/chat/completions", { model: "gpt-5", messages }));
  console.log(await ask("/v1/chat/completions", { model: "gpt-5", messages, stream: true }));
  console.log(await ask("/echo?in=header"));
  console.log("FINISHED"); process.stdin.resume();
})();
"""

# fetch takes no agent without a package: the base URL is the proxy itself, which needs no trust either.
NODE_FETCH = """
const base = process.env.OPENAI_BASE_URL;
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "content-type": "application/json" };
(async () => {
  const body = { model: "gpt-5", messages: [{ role: "user", content: "one two three" }] };
  const ask = (more) => fetch(`${base}/v1/chat/completions`,
    { method: "POST", headers, body: JSON.stringify({ ...body, ...more }) });
  const plain = await ask({});
  console.log(plain.status, JSON.stringify([...plain.headers]), await plain.text());
  const decoder = new TextDecoder();
  let text = "";
  for await (const part of (await ask({ stream: true })).body) text += decoder.decode(part, { stream: true });
  console.log(200, text);
  const echo = await fetch(`${base}/echo?in=header`, { headers });
  console.log(echo.status, JSON.stringify([...echo.headers]), await echo.text());
  console.log("FINISHED"); process.stdin.resume();
})();
"""

JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
  public static void main(String[] args) throws Exception {
    var client = HttpClient.newHttpClient();
    var key = "Bearer " + System.getenv("OPENAI_API_KEY");
    for (var path : new String[] {"/v1/models", "/echo", "/echo?in=header"}) {
      var request = HttpRequest.newBuilder(URI.create("https://api.openai.com" + path))
          .header("Authorization", key).build();
      var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
      System.out.println(answer.statusCode() + " " + answer.headers().map() + " " + answer.body());
    }
    System.out.println("FINISHED");
    System.in.read();
  }
}
"""


def ended(output: str) -> bool:
    return FINISHED in output.splitlines()


@pytest.mark.needs_debian("node")
async def test_nodes_https_through_a_tunnel(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """Plain, streamed, and from an origin that echoes the key in a header."""
    ran = await client.run("node", "-e", NODE_HTTPS.replace("FINISHED", FINISHED))
    assert ended(ran.output), ran.output
    assert ran.output.count("\n200 ") + ran.output.startswith("200 ") == 3, ran.output
    assert "You said: one two three" in ran.output and "data: [DONE]" in ran.output
    assert "*" * len(real_keys["openai"]) in ran.output
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 3


@pytest.mark.needs_debian("node")
async def test_nodes_fetch_with_a_base_url(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str]
) -> None:
    """A client that can neither use a proxy nor trust a CA talks to the proxy as to the API."""
    variables = {"OPENAI_BASE_URL": f"{client.sandbox.proxy}/openai"}
    ran = await client.run("node", "-e", NODE_FETCH.replace("FINISHED", FINISHED), **variables)
    assert ended(ran.output), ran.output
    assert ran.output.count("\n200 ") + ran.output.startswith("200 ") == 3, ran.output
    assert "You said: one two three" in ran.output and "data: [DONE]" in ran.output
    assert "*" * len(real_keys["openai"]) in ran.output
    assert [(seen.genuine, seen.host) for seen in origin_server.seen] == [("openai", "api.openai.com")] * 3


async def test_javas_http_client(
    client: Inside, origin_server: TlsServer, real_keys: dict[str, str], tmp_path: Path
) -> None:
    """Proxy and trust come from JAVA_TOOL_OPTIONS, which every JVM reads."""
    if shutil.which("javac", path=client.environment["PATH"]) is None:
        pytest.skip("there is no JDK (javac) on this machine, and nothing else needs one")
    source = tmp_path / "Ask.java"
    source.write_text(JAVA.replace("FINISHED", FINISHED))
    ran = await client.run("java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", str(source))
    assert ended(ran.output), ran.output
    assert ran.output.count("\n200 ") == 3, ran.output
    assert ran.output.count("*" * len(real_keys["openai"])) == 2
    assert [seen.genuine for seen in origin_server.seen] == ["openai"] * 3
