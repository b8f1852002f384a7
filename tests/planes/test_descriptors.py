"""Which descriptors a sandbox's connection may have."""

import resource

from coatcheck.planes.descriptors import RESERVED, is_spare


def test_the_last_ones_are_nobodys() -> None:
    """Measured against the limit as it is now: an operator may change it while we run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for limit in (512, 1000):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            assert is_spare(limit - RESERVED - 1) and not is_spare(limit - RESERVED)
            assert is_spare(limit - 2 * RESERVED - 1, greedy=True)
            assert not is_spare(limit - 2 * RESERVED, greedy=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
