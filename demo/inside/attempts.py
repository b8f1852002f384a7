"""Runs INSIDE the sandbox: requests written by hand, as an attacker writes them.

Input: a list of attempts. `to`: where the tunnel goes; `sni`: the name in the TLS handshake; `host`: the
Host header; the last two default to the first. `{NAME}` in a target or header stands for the variable's
value. Output: what came back for each.
"""

import json
import os
import socket
import ssl
import sys
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

SECONDS = 20.0
BYTES = 1 << 20


def filled(text: str) -> str:
    for name, value in os.environ.items():  # noqa: TID251 - the sandbox's own
        text = text.replace("{" + name + "}", value)
    return text


def answer_of(stream: socket.socket, method: str) -> dict[str, Any]:
    response = HTTPResponse(stream, method=method)
    try:
        response.begin()
        body = b"" if method == "CONNECT" and response.status == 200 else response.read(BYTES)
    except (OSError, HTTPException) as error:
        return {"status": 0, "error": type(error).__name__}
    headers = {name.lower(): value for name, value in response.getheaders()}
    return {"status": response.status, "headers": headers, "body": body.decode("latin-1")}


def attempt(wanted: dict[str, str]) -> dict[str, Any]:
    proxy = urlsplit(os.environ["HTTPS_PROXY"])  # noqa: TID251 - the sandbox's own
    host = wanted["to"].rpartition(":")[0]
    try:
        stream = socket.create_connection((proxy.hostname, proxy.port), SECONDS)
    except OSError as error:
        return {"stage": "no way out", "error": type(error).__name__}
    with stream:
        stream.sendall(f"CONNECT {wanted['to']} HTTP/1.1\r\nHost: {wanted['to']}\r\n\r\n".encode())
        answer = answer_of(stream, "CONNECT")
        if answer["status"] != 200:
            return answer | {"stage": "the tunnel"}
        trust = ssl.create_default_context()
        trust.check_hostname = False  # the attack is that names differ; the CA is checked all the same
        try:
            secured = trust.wrap_socket(stream, server_hostname=wanted.get("sni", host))
        except OSError as error:
            return {"stage": "the TLS handshake", "error": type(error).__name__}
        with secured:
            headers = {"Host": wanted.get("host", host)}
            if "authorization" in wanted:
                headers["Authorization"] = filled(wanted["authorization"])
            body = wanted.get("body", "")
            if body:
                headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
            method = wanted.get("method", "GET")
            head = f"{method} {filled(wanted['path'])} HTTP/1.1\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            secured.sendall((head + "\r\n" + body).encode())
            return answer_of(secured, method) | {"stage": "the request"}


print(json.dumps([attempt(wanted) for wanted in json.loads(sys.stdin.readline())]), flush=True)
sys.stdin.read()
