"""A sandbox as those see it who run it."""

from dataclasses import replace
from pathlib import PurePosixPath

from coatcheck.durable.elastic import Elastic
from coatcheck.launcher.sandbox import IDENTITIES, Backend, SandboxProblem, SandboxRefused, trust_inside
from tests.durable.test_recovery import DEAD


def test_each_identity_has_its_own_trust_on_a_tmpfs() -> None:
    """`/run` is one in every image; a disk, and a snapshot of one, holds none of it."""
    assert trust_inside("tool") == (
        PurePosixPath("/run/coatcheck/trust/tool/coatcheck-ca.pem"),
        PurePosixPath("/run/coatcheck/trust/tool/ca-bundle.pem"),
        PurePosixPath("/run/coatcheck/trust/tool/truststore.p12"),
    )
    assert len({path for identity in IDENTITIES for path in trust_inside(identity)}) == 3 * len(IDENTITIES)


def test_one_that_is_not_resized_says_why() -> None:
    """A balloon and memory that several share exclude each other: each has one of them, or neither."""
    grows = replace(DEAD, backend=Backend.MICROVM, elastic=Elastic(256, 512, 1, 1))
    assert grows.one_size == ""
    assert replace(grows, elastic=None).one_size == "no ceiling was asked for"
    assert "siblings" in replace(grows, shares_memory=True).one_size
    assert "namespace" in replace(DEAD, backend=Backend.NAMESPACE, elastic=None).one_size


def test_a_refusal_says_what_happened_wherever_it_is_printed() -> None:
    """And what to do next."""
    refused = SandboxRefused(SandboxProblem.NO_BACKEND, "no QEMU here", "install it")
    assert (str(refused), refused.message, refused.hint) == ("no QEMU here", "no QEMU here", "install it")
