"""A pytest plugin (`-p tests.hard.profile`): three times the examples for each property, new ones every time.

Loaded before any test is collected, so that `tests.fuzz.budget` sees it. Properties elsewhere in the suite
that name no number of examples follow it, too.
"""

from hypothesis import HealthCheck, settings

from tests.fuzz.budget import HARD

settings.register_profile(
    HARD,
    max_examples=300,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(HARD)
