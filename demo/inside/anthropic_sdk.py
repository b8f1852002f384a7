"""Runs INSIDE the sandbox: the real anthropic SDK. It is configured by its environment alone."""

import hashlib
import json
import sys
import time

import anthropic
from anthropic.types import MessageParam

asked = json.loads(sys.stdin.readline())
client = anthropic.Anthropic(max_retries=0, timeout=30)
question: list[MessageParam] = [{"role": "user", "content": asked["say"]}]

answer = client.messages.create(model="claude-sonnet-5", max_tokens=64, messages=question)
said = "".join(block.text for block in answer.content if block.type == "text")

arrivals, streamed = [], ""
with client.messages.stream(model="claude-sonnet-5", max_tokens=64, messages=question) as stream:
    for text in stream.text_stream:
        arrivals.append(time.monotonic())
        streamed += text

fingerprint = hashlib.sha256((client.api_key or "").encode()).hexdigest()[:8]
spread = round(1000 * (arrivals[-1] - arrivals[0]))
print(
    json.dumps(
        [
            {"sent": fingerprint, "said": said},
            {"sent": fingerprint, "said": streamed, "events": len(arrivals), "spread_ms": spread},
        ]
    ),
    flush=True,
)
sys.stdin.read()  # the host searches our memory now
