"""A sandbox as its daemon and its callers see it."""

from dataclasses import replace

from coatcheck.durable.elastic import Elastic
from coatcheck.sandbox.sandbox import Backend
from tests.durable.test_recovery import DEAD


def test_one_that_is_not_resized_says_why() -> None:
    """A balloon and memory that several share exclude each other: each has one of them, or neither."""
    grows = replace(DEAD, backend=Backend.MICROVM, elastic=Elastic(256, 512, 1, 1))
    assert grows.one_size == ""
    assert replace(grows, elastic=None).one_size == "no ceiling was asked for"
    assert "siblings" in replace(grows, shares_memory=True).one_size
    assert "namespace" in replace(DEAD, backend=Backend.NAMESPACE, elastic=None).one_size
