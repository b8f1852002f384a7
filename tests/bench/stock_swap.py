"""The reference as people run it: `mitmdump -s stock_swap.py`, doing nothing but the header swap.

BENCH_HANDLES names a JSON file, handle -> secret. No policy, no sessions, no scrubbing, no audit.
"""

import json
import os
from pathlib import Path

from mitmproxy import http


class Swap:
    """Replaces the Authorization header that a sandbox sends with the real one."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self.secrets = secrets

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        secret = self.secrets.get(flow.request.headers.get("authorization", ""))
        if secret is not None:
            flow.request.headers["authorization"] = secret


addons = [Swap(json.loads(Path(os.environ["BENCH_HANDLES"]).read_text()))]
