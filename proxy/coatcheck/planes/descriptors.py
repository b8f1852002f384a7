"""Descriptors set apart from sandboxes' use: revoking, recording and asking Vault always need some."""

import resource
from typing import Final

RESERVED: Final = 64
"""Set apart: 32 for callers of the control API, 18 for Vault, the rest for logs, policies and state. As many
again are for sandboxes that have few connections."""


def is_spare(number: int, *, greedy: bool = False) -> bool:
    """Whether descriptor `number`, which was made just now, may be kept for a sandbox. The kernel gives the
    lowest free number, so it shows how many are in use."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit == resource.RLIM_INFINITY or number < limit - (2 * RESERVED if greedy else RESERVED)
