"""Which secrets are looked for: all of the policies', as far as they can be had, and those of before."""

import asyncio
from collections.abc import Collection

import pytest

from coatcheck.decision.policy import SecretRef
from coatcheck.inspection import holdings
from coatcheck.inspection.holdings import SERVED, UNAVAILABLE, Holdings, collect
from coatcheck.policy.file.loading import load_policy
from coatcheck.secrets import Secret, SecretUnavailable
from coatcheck.secrets.memory import MemoryStore
from tests.known_secrets import known_secret

ID, KEY = known_secret("holdings id", prefix="AKIA", length=16), known_secret("holdings key", prefix="")
TOKEN = known_secret("holdings token", prefix="", length=300)
OPENAI, OLD = known_secret("holdings openai"), known_secret("holdings rotated")
SHORT = "only-15-letters"

POLICY = load_policy(
    "default",
    b"""
version: 1
owner: tests
credentials:
  openai:
    secret: memory:secret/openai#api_key
    hosts: [api.openai.com]
    inject: {header: Authorization, value: "Bearer {secret}"}
  git:
    secret: memory:secret/git#token
    hosts: [github.com]
    inject: {basic: {username: x-access-token}}
  aws:
    secret: memory:secret/aws#keys
    hosts: [sqs.eu-central-1.amazonaws.com]
    inject: {sigv4: {services: [sqs]}}
  pin:
    secret: memory:secret/pin#pin
    hosts: [api.openai.com]
    inject: {header: X-Pin}
    scrub: {off: "it is short"}
rules:
  - name: openai
    hosts: [api.openai.com]
    methods: [GET]
    credentials: [openai, pin]
  - name: git
    hosts: [github.com]
    methods: [GET]
    credentials: [git]
  - name: aws
    hosts: [sqs.eu-central-1.amazonaws.com]
    methods: [POST]
    credentials: [aws]
""",
)
SECRETS = {
    "memory:secret/openai#api_key": OPENAI,
    "memory:secret/git#token": OPENAI,
    "memory:secret/aws#keys": f"{ID}:{KEY}:{TOKEN}",
    "memory:secret/pin#pin": SHORT,
}


async def collected(secrets: dict[str, str], served: Collection[str] = ()) -> Holdings:
    return await collect({"default": POLICY}, MemoryStore(secrets), served)


async def test_every_credential_of_the_policy_is_looked_for() -> None:
    """Of an AWS pair the secret parts, since its id stands in every request; two credentials may share a
    secret; and a secret that is too short is told."""
    found = await collected(SECRETS)
    assert found.checked == {"aws": 2, "git": 1, "openai": 1}
    assert {(v.credential, v.secret) for v in found.values} == {
        ("aws", KEY.encode()), ("aws", TOKEN.encode()), ("git", OPENAI.encode()), ("openai", OPENAI.encode()),
    }  # fmt: skip
    assert found.not_checked.keys() == {"pin"} and "shorter than 16" in found.not_checked["pin"]
    assert not found.unknown
    for text in (OPENAI, KEY, TOKEN, SHORT):
        assert text not in repr(found)


async def test_what_the_store_does_not_have_or_give_is_told() -> None:
    """Missing: there is nothing to find. Unavailable: there may be, so nothing can be said."""

    class Sealed(MemoryStore):
        async def fetch(self, ref: SecretRef) -> Secret:
            if ref.path == "openai":
                raise SecretUnavailable("sealed")
            return await super().fetch(ref)

    found = await collect({"default": POLICY}, Sealed({"memory:secret/git#token": OPENAI}), ())
    assert found.not_checked["openai"] == UNAVAILABLE and found.unknown
    assert found.not_checked["aws"] == found.not_checked["pin"] == "the secret store has no such secret"
    assert found.checked == {"git": 1}
    assert not (await collected({})).unknown


async def test_a_store_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked side by side, for one deadline."""
    monkeypatch.setattr(holdings, "FETCH_SECONDS", 0.05)

    class Hanging(MemoryStore):
        async def fetch(self, ref: SecretRef) -> Secret:
            await asyncio.sleep(60)
            raise AssertionError

    async with asyncio.timeout(10):
        found = await collect({"default": POLICY}, Hanging({}), ())
    assert set(found.not_checked.values()) == {UNAVAILABLE}


async def test_what_the_sandbox_was_served_before_a_rotation_is_looked_for() -> None:
    """The old value may be what stands there."""
    served = {OLD, OPENAI}
    found = await collected(SECRETS, served)
    assert [v.secret for v in found.values if v.credential == SERVED] == [OLD.encode()]
    assert found.checked[SERVED] == 1


async def test_a_pair_that_is_none_is_told() -> None:
    """Nothing of it can be put into a request, either."""
    found = await collected(SECRETS | {"memory:secret/aws#keys": "not a pair"})
    assert "not an AWS key pair" in found.not_checked["aws"] and "aws" not in found.checked


async def test_a_policy_that_is_gone_leaves_nothing_proven() -> None:
    """A session's policy was removed from the directory: what it named is not known any more."""
    found = await collect({"default": None}, MemoryStore({}), ())
    assert found.not_checked == {"policy default": UNAVAILABLE} and found.unknown
