"""Which pages of a private map are its own: on a map of this very process."""

import mmap
import os
from collections.abc import Iterator

import pytest

from coatcheck.durable.private_memory import copy_own, own_pages

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 12 << 20


@pytest.fixture
def template() -> Iterator[int]:
    descriptor = os.memfd_create("template")
    os.ftruncate(descriptor, SIZE)
    for at in range(0, SIZE, 1 << 20):
        os.pwrite(descriptor, b"template", at)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def mapped(template: int) -> Iterator[mmap.mmap]:
    with mmap.mmap(template, SIZE, mmap.MAP_PRIVATE) as memory:
        yield memory


def test_what_nobody_wrote_to_is_the_templates(template: int, mapped: mmap.mmap) -> None:
    """Also where it was read."""
    assert mapped[: 8 << 20].startswith(b"template")
    assert list(own_pages(os.getpid(), template)) == []


def test_pages_that_were_written_to_are_found_in_rows(template: int, mapped: mmap.mmap) -> None:
    """At the edges of what is looked at in one go, too."""
    for page in (0, 1, 2, 700, 1023, 1024, 2048, SIZE // PAGE - 1):
        mapped[page * PAGE + 5] = 1
    found = [(place // PAGE, length // PAGE) for place, _, length in own_pages(os.getpid(), template)]
    assert found == [(0, 3), (700, 1), (1023, 1), (1024, 1), (2048, 1), (SIZE // PAGE - 1, 1)]


def test_a_copy_of_the_template_with_its_own_pages_is_its_memory(template: int, mapped: mmap.mmap) -> None:
    """Zeros that were written over something included."""
    mapped[1 << 20 : (1 << 20) + 8] = bytes(8)
    mapped[(3 << 20) - 4 : (3 << 20) + 4] = b"straddle"
    target = os.memfd_create("target")
    try:
        os.ftruncate(target, SIZE)
        os.pwrite(target, os.pread(template, SIZE, 0), 0)
        assert copy_own(os.getpid(), template, target) == 3 * PAGE
        assert os.pread(target, SIZE, 0) == mapped[:]
        assert os.pread(template, 8, 1 << 20) == b"template"
    finally:
        os.close(target)


def test_a_process_that_does_not_map_it_has_none(template: int) -> None:
    """It is told by the file itself, not by its name."""
    with mmap.mmap(-1, SIZE) as other:
        other[0] = 1
        assert list(own_pages(os.getpid(), template)) == []
