"""Runs INSIDE a sandbox without a proxy variable, standard library only: works, and tries other ways out."""

import json
import os
import socket
import sys
from hashlib import sha256
from urllib.error import HTTPError
from urllib.request import Request, urlopen

VARIABLES = os.environ  # noqa: TID251 - the sandbox's own
SECONDS = 15
NO_ANSWER_SECONDS = 1.0
"""For what is refused at once, or not at all."""


def ask(url: str, body: object = None) -> dict[str, object]:
    """One request with the handle, as any program makes it that is told of a key and of nothing else."""
    headers = {"Authorization": f"Bearer {VARIABLES['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urlopen(Request(url, data, headers), timeout=SECONDS) as answer:  # noqa: S310 - of ours
            return {"status": answer.status, "body": answer.read().decode()}
    except HTTPError as refused:
        return {"status": refused.code, "reason": refused.headers.get("Coatcheck-Reason", "")}
    except OSError as error:
        return {"status": 0, "reason": str(error)}


def reach(protocol: str, address: str, port: int) -> str:
    """`answered`, or why not."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as sock:
            sock.settimeout(NO_ANSWER_SECONDS)
            sock.connect((address, port))
            sock.send(b"\0")
            sock.recv(1)
    except OSError as error:
        return error.strerror or str(error)
    return "answered"


given = json.load(sys.stdin)
chat = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": given["say"]}]}
print(
    json.dumps(
        {
            "sent": sha256(VARIABLES["OPENAI_API_KEY"].encode()).hexdigest()[:8],
            "variables": sorted(name for name in VARIABLES if "proxy" in name.lower()),
            "address": socket.gethostbyname(given["host"]),
            "served": ask(f"https://{given['host']}/v1/chat/completions", chat),
            "elsewhere": ask(f"https://{given['elsewhere']}/"),
            "reached": [reach(*where) for where in given["reach"]],
        }
    )
)
