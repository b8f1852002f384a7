"""Places come from another process, as JSON."""

import pytest

from coatcheck.inspection.scan_targets import Place, PlaceKind, place_of
from coatcheck.sandbox.machine import RemainKind


def test_a_place_is_a_file_or_a_process() -> None:
    """Exactly one of the two."""
    said = {"name": "guest memory", "kind": "memory", "path": "/run/x/ram", "pid": None}
    assert place_of(said) == Place("guest memory", PlaceKind.MEMORY, "/run/x/ram", None)
    assert place_of({"name": "p", "kind": "process", "pid": 7}) == Place("p", PlaceKind.PROCESS, None, 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": 1, "path": "/x"}, {"path": None}, {"kind": "other", "path": "/x"},
        {"name": "a\nb", "path": "/x"},
        {"name": "x" * 101, "path": "/x"}, {"name": 3, "path": "/x"}, {"path": 3}, {"pid": "1"},
    ],
)  # fmt: skip
def test_anything_else_is_refused(wrong: dict[str, object]) -> None:
    """A place that is not understood would not be searched."""
    with pytest.raises(ValueError, match=r"place|not one file|PlaceKind"):
        place_of({"name": "n", "kind": "file"} | wrong)


def test_the_launchers_kinds_are_all_known() -> None:
    """The launcher does not know this package, nor this package the launcher."""
    assert {kind.value for kind in RemainKind} == {kind.value for kind in PlaceKind}
