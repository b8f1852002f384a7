// Runs INSIDE the sandbox: Node twice. First its own tls and https modules through the proxy's CONNECT
// (Node before 22.21 reads no proxy variables); then its fetch on a base URL at the proxy, which needs
// no CA at all: the proxy speaks TLS to the provider.
import { createHash } from "node:crypto";
import { request } from "node:http";
import { request as secureRequest } from "node:https";
import { createInterface } from "node:readline";

const lines = createInterface({ input: process.stdin });
const asked = JSON.parse(await new Promise((resolve) => lines.once("line", resolve)));
const key = process.env.OPENAI_API_KEY;
const proxy = new URL(process.env.HTTPS_PROXY);
const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
const body = (more) =>
  JSON.stringify({ model: "gpt-4o-mini", messages: [{ role: "user", content: asked.say }], ...more });

function tunnel(host) {
  return new Promise((resolve, reject) => {
    const connect = request({
      host: proxy.hostname, port: proxy.port, method: "CONNECT", path: `${host}:443`,
      headers: { host: `${host}:443` }, // Node would name the proxy here, against RFC 9112 3.2
    });
    connect.once("connect", (answer, socket) =>
      answer.statusCode === 200 ? resolve(socket) : reject(new Error(`CONNECT: ${answer.statusCode}`)));
    connect.once("error", reject).end();
  });
}

async function throughTunnel() {
  const socket = await tunnel("api.openai.com");
  return new Promise((resolve, reject) => {
    const call = secureRequest(
      { host: "api.openai.com", path: "/v1/chat/completions", method: "POST", headers, socket, agent: false },
      async (answer) => {
        let text = "";
        for await (const part of answer) text += part;
        if (answer.statusCode !== 200) reject(new Error(`${answer.statusCode} ${text}`));
        else resolve(JSON.parse(text).choices[0].message.content);
      });
    call.once("error", reject).end(body({}));
  });
}

async function byBaseUrl() {
  const answer = await fetch(new URL("/openai/v1/chat/completions", proxy), {
    method: "POST", headers, body: body({ stream: true }),
  });
  let text = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) text += part;
  if (answer.status !== 200) throw new Error(`${answer.status} ${text}`);
  return [...text.matchAll(/"content":"([^"]*)"/g)].map((found) => found[1]).join("");
}

const sent = createHash("sha256").update(key).digest("hex").slice(0, 8);
const said = [await throughTunnel(), await byBaseUrl()];
console.log(JSON.stringify(said.map((words) => ({ sent, said: words }))));
await new Promise((resolve) => lines.once("close", resolve)); // the host searches our memory now
process.exit(0);
