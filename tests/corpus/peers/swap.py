"""A plain swap addon for a stock mitmdump, as many projects have one: an allowlist of hosts, and placeholders
that are replaced in headers on their own host. `SWAP` names a JSON file with both.
"""

import json
import os
from pathlib import Path

from mitmproxy import http

KNOWN = json.loads(Path(os.environ["SWAP"]).read_text())


def request(flow: http.HTTPFlow) -> None:
    host = flow.request.pretty_host
    if host not in KNOWN["hosts"]:
        flow.response = http.Response.make(403, b"this host is not allowed\n")
        return
    for placeholder, secret in KNOWN["secrets"].get(host, {}).items():
        for name, value in flow.request.headers.items():
            if placeholder in value:
                flow.request.headers[name] = value.replace(placeholder, secret)
