"""The demo's origin as a process: api.openai.com, which takes nothing but the real key."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.upstreams import UpstreamTls


@contextmanager
def an_origin(tls: UpstreamTls, key: str) -> Iterator["tuple[subprocess.Popen[str], int]"]:
    words = ("--certificate", str(tls.certificate), "--key", str(tls.key), "--name", "api.openai.com")
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.upstreams.origin", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"openai": key}) + "\n")
        process.stdin.flush()
        yield process, int(json.loads(process.stdout.readline())["port"])
    finally:
        process.kill()
        process.communicate()
