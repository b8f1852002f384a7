"""How many examples a property gets: few and the same ones in `make test`, many random ones in `make hard`.

`make hard` loads the hypothesis profile `hard` (tests/hard/profile.py). Without it the examples follow from
the test's own source, so that what passed passes again: a search has its place, and it is not a gate.
"""

from hypothesis import HealthCheck, settings

HARD = "hard"
"""The profile's name."""


def budget(examples: int) -> settings:
    """`examples` in `make test`; in `make hard` as many times more as the profile has over 100."""
    profile = settings.get_current_profile_name()
    hard = profile == HARD
    scale = settings.get_profile(profile).max_examples / 100 if hard else 1.0
    return settings(
        max_examples=max(1, round(examples * scale)),
        derandomize=not hard,
        database=None,
        deadline=None,  # a slow machine is no finding; what may not hang says so itself
        # one daemon, channel or world serves all examples of a property: that is wanted
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
