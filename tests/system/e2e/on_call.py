"""A person at the page, in a real Chromium."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser import Person, chromium
from tests.system.control.conftest import Control, token_of

SLOW = "https://api.openai.com/sse?n=10000&gap_ms=10"
"""A stream that nobody waits for the end of."""


async def drain(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


@pytest.fixture(scope="module")
def browser() -> Iterator[Person]:
    with chromium() as driver:
        yield Person(driver)


@pytest.fixture
def person(browser: Person, control: Control) -> Iterator[Person]:
    """A browser that nobody has logged in. Its console is clean afterwards, before the daemon stops."""
    browser.start_over()
    yield browser
    assert browser.complaints() == []


def log_in(person: Person, control: Control, caller: str = "operator") -> None:
    person.open(f"{control.url}/page/")
    person.type("#token", token_of(caller))
    person.click("#token-form button")
    person.reads("#name", caller)
    person.find("#board")
