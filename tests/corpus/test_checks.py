"""Each check of the corpus names a piece of today's source, so that it can be switched off."""

import pytest

from tests.corpus import switches
from tests.corpus.schema import Check, checks

CHECKS = checks()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_a_check_names_what_the_source_says(check: Check) -> None:
    """Seconds, where switching all of them off under load takes minutes: an edit that strands one is seen
    before it is committed."""
    with switches.off(check):
        pass
