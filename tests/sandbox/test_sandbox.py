"""The words of a sandbox."""

from pathlib import PurePosixPath

from coatcheck.sandbox.sandbox import IDENTITIES, SandboxProblem, SandboxRefused, trust_inside


def test_each_identity_has_its_own_trust_on_a_tmpfs() -> None:
    """`/run` is one in every image; a disk, and a snapshot of one, holds none of it."""
    assert trust_inside("tool") == (
        PurePosixPath("/run/coatcheck/trust/tool/coatcheck-ca.pem"),
        PurePosixPath("/run/coatcheck/trust/tool/ca-bundle.pem"),
        PurePosixPath("/run/coatcheck/trust/tool/truststore.p12"),
    )
    assert len({path for identity in IDENTITIES for path in trust_inside(identity)}) == 3 * len(IDENTITIES)


def test_a_refusal_says_what_happened_wherever_it_is_printed() -> None:
    """And what to do next."""
    refused = SandboxRefused(SandboxProblem.NO_BACKEND, "no QEMU here", "install it")
    assert (str(refused), refused.message, refused.hint) == ("no QEMU here", "no QEMU here", "install it")
