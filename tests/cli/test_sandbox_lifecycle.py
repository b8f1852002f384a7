"""How a lifecycle is asked for, and shown."""

import pytest

from coatcheck.cli.errors import CommandError
from coatcheck.cli.sandbox_lifecycle import check_keep, described
from coatcheck.durable.durability import Lifecycle


@pytest.mark.parametrize("lifecycle", list(Lifecycle))
def test_what_outlives_its_command_must_be_kept(lifecycle: Lifecycle) -> None:
    """`sandbox run` ends what it made, unless it is told otherwise."""
    check_keep(lifecycle, keep=True)
    check_keep(None, keep=False)
    if lifecycle is Lifecycle.EPHEMERAL:
        check_keep(lifecycle, keep=False)
    else:
        with pytest.raises(CommandError, match=f"a {lifecycle} sandbox does not end with its command"):
            check_keep(lifecycle, keep=False)


def test_it_is_shown_in_words() -> None:
    """What does not hold is not spoken of."""
    nothing = {
        "lifecycle": None,
        "idle": "end",
        "recover": "never",
        "snapshot_every": 0,
        "rotate_snapshots": False,
    }
    assert described(nothing) == "as asked"
    everything = {
        "lifecycle": "hybrid",
        "idle": "sleep",
        "recover": "last-snapshot",
        "snapshot_every": 3600.0,
        "rotate_snapshots": True,
    }
    assert described(everything) == (
        "hybrid; sleeps when idle; a snapshot every 3600 s, the oldest of these replaced;"
        " brought back when it dies"
    )
    assert described(everything | {"rotate_snapshots": False, "idle": "end"}) == (
        "hybrid; a snapshot every 3600 s; brought back when it dies"
    )
