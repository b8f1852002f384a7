"""A dict in all that can be read of it; what was read before a change stays as it was."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.state.persistent_map import SHARDS, PersistentMap

keys = st.integers(0, 3 * SHARDS)  # small integers are their own hash: several meet in a shard


@given(st.lists(st.tuples(st.lists(st.tuples(keys, st.integers())), st.lists(keys)), max_size=8))
def test_it_reads_like_a_dict_that_had_the_same_changes(
    changes: list[tuple[list[tuple[int, int]], list[int]]],
) -> None:
    """And every map on the way still reads as it did when it was made."""
    now: PersistentMap[int, int] = PersistentMap()
    expected: dict[int, int] = {}
    made: list[tuple[PersistentMap[int, int], dict[int, int]]] = [(now, {})]
    for put, drop in changes:
        now = now.changed(put, drop)
        expected = {key: value for key, value in expected.items() if key not in drop} | dict(put)
        made.append((now, expected))
    for found, wanted in made:
        assert found == wanted and len(found) == len(wanted) and sorted(found) == sorted(wanted)
        assert all(found[key] == found.get(key) == value for key, value in wanted.items())
        missing = 3 * SHARDS + 1
        assert missing not in found and found.get(missing) is None and found.get(missing, 7) == 7


def test_a_change_copies_a_small_part() -> None:
    """Of ten thousand entries all but one shard's are shared with the map before."""
    before: PersistentMap[int, str] = PersistentMap()
    before = before.changed((number, "x") for number in range(10_000))
    after = before.changed([(1, "y")])
    same = [a is b for a, b in zip(before.shards, after.shards, strict=True)]
    assert same.count(False) == 1 and before[1] == "x" and after[1] == "y"
    assert sys.getsizeof(after.shards[1]) < sys.getsizeof(dict(before)) / 50
