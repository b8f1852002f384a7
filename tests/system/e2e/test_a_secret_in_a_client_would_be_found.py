"""The other tests here say "no secret in the client": each of their searches finds one that is there."""

import pytest

from tests.known_secrets import known_secret
from tests.system.e2e.inside import Inside

# The client is told the secret back to front: turned round, it stands in its memory and nowhere else.
REMEMBERS = "import os, sys\nkept = os.environ['BACKWARDS'][::-1]\nprint(len(kept))\n"


async def test_in_its_memory(client: Inside) -> None:
    """A client that only once held the secret in a variable is found out."""
    secret = known_secret("a planted secret")
    with pytest.raises(AssertionError, match="memory holds: a planted secret"):
        await client.python(REMEMBERS, BACKWARDS=secret[::-1])


async def test_in_its_output(client: Inside) -> None:
    """So is one that prints it."""
    secret = known_secret("a planted secret")
    with pytest.raises(AssertionError, match="output holds: a planted secret"):
        await client.run("sh", "-c", 'echo "$BACKWARDS" | rev', BACKWARDS=secret[::-1])


async def test_in_its_environment(client: Inside) -> None:
    """And one that is started with it."""
    with pytest.raises(AssertionError, match="environment holds: a planted secret"):
        await client.run("true", PLANTED=known_secret("a planted secret"))
