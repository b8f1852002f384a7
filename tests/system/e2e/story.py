"""What the stories share: a small policy to build on, ways to ask, and patience with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx

from tests.daemon import Sandbox

PATIENCE = 20.0
"""Seconds for what takes a fraction of one on an idle machine."""

MODELS = "https://api.openai.com/v1/models"


def policy(rule: str = "", secret: str = "memory:secret/openai#api_key", credential: str = "") -> str:
    """One credential, one rule; `rule` and `credential` are further lines of YAML for each."""
    return f"""
version: 1
owner: tests
credentials:
  openai:
    secret: {secret}
    hosts: [api.openai.com]
    inject: {{header: Authorization, value: "Bearer {{secret}}"}}
    env: OPENAI_API_KEY
    {credential}
rules:
  - name: models
    hosts: [api.openai.com]
    methods: [GET, POST]
    credentials: [openai]
    {rule}
"""


def bearer(sandbox: Sandbox) -> dict[str, str]:
    return {"Authorization": f"Bearer {sandbox.handles['openai']}"}


def reason(answer: httpx.Response) -> str:
    """Why it was refused; empty when it was not."""
    return str(answer.headers.get("coatcheck-reason", ""))


async def until[V](
    look: Callable[[], Awaitable[V]],
    holds: Callable[[V], bool],
    every: float = 0.05,
    patience: float = PATIENCE,
) -> V:
    """The first thing seen for which `holds`. Fails when `patience` ends."""
    end = time.monotonic() + patience
    while True:
        seen = await look()
        if holds(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:g} s in vain; the last thing seen: {seen!r}")
        await asyncio.sleep(every)
