"""Runs INSIDE the sandbox: the real openai SDK. It is configured by its environment alone."""

import hashlib
import json
import sys
import time

import openai

asked = json.loads(sys.stdin.readline())
client = openai.OpenAI(max_retries=0, timeout=30)

answer = client.chat.completions.create(
    model="gpt-4o-mini", messages=[{"role": "user", "content": asked["say"]}]
)
said = answer.choices[0].message.content

arrivals, streamed = [], ""
for event in client.responses.create(model="gpt-5", input=asked["say"], stream=True):
    if event.type == "response.output_text.delta":
        arrivals.append(time.monotonic())
        streamed += event.delta

fingerprint = hashlib.sha256(client.api_key.encode()).hexdigest()[:8]
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
