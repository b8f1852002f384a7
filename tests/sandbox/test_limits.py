"""What may be asked for, what is given, and what somebody is told who wanted more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.sandbox.limits import (
    MIB,
    OPTIONS,
    LimitError,
    LimitName,
    Limits,
    OutputBound,
    TokenBucket,
    ceilings,
    choose,
    explain,
)
from coatcheck.sandbox.resources import Resources
from coatcheck.settings.daemon import Settings

CEILING = Limits(
    resources=Resources(memory_mib=4096, cpus=2, disk_mib=4096, processes=1000),
    output_bytes=128 * MIB,
    network_bytes_per_second=128 * MIB,
    run_seconds=20_000,
)


def test_who_asks_for_nothing_gets_the_defaults() -> None:
    """And never more than the operator gives anybody."""
    assert choose({}, CEILING) == Limits()
    small = Limits(Resources(memory_mib=128), run_seconds=60)
    assert choose({}, small) == small


def test_what_is_asked_for_is_given_in_the_options_units() -> None:
    """MiB for memory, disk and output; MiB a second for the network."""
    asked = {LimitName.MEMORY: 2048, LimitName.OUTPUT: 2, LimitName.NETWORK: 3, LimitName.TIME: 90}
    given = choose(asked, CEILING)
    assert (given.resources.memory_mib, given.output_bytes, given.run_seconds) == (2048, 2 * MIB, 90)
    assert given.network_bytes_per_second == 3 * MIB and given.resources.cpus == Limits().resources.cpus


def test_more_than_the_ceiling_is_refused_with_the_ceiling_and_who_can_raise_it() -> None:
    """Giving less in silence would be found out hours later."""
    with pytest.raises(LimitError) as refused:
        choose({LimitName.MEMORY: 8192}, CEILING)
    assert str(refused.value) == "8192 MiB is more memory than a sandbox gets here"
    assert "--memory 4096" in refused.value.hint and "COATCHECK_SANDBOX_MAX_MEMORY" in refused.value.hint


@pytest.mark.parametrize("name", list(LimitName))
def test_too_little_to_run_is_refused_with_the_least(name: LimitName) -> None:
    """A sandbox of 1 MiB would die at its start for no reason that anybody sees."""
    with pytest.raises(LimitError, match="too little") as refused:
        choose({name: 0}, CEILING)
    assert f"at least {OPTIONS[name]} " in refused.value.hint


@pytest.mark.parametrize("name", list(LimitName))
def test_whoever_hits_a_limit_is_told_which_how_much_and_how_to_raise_it(name: LimitName) -> None:
    """A dead process without a reason is what makes people turn limits off."""
    happened, remedy = explain(name, Limits(), CEILING)
    assert any(character.isdigit() for character in happened)
    assert OPTIONS[name] in remedy
    happened, remedy = explain(name, CEILING, CEILING)
    setting = next(word for word in remedy.split() if word.startswith("COATCHECK_"))
    assert setting.removeprefix("COATCHECK_").lower() in Settings.model_fields


def test_the_words_for_memory() -> None:
    """As a person reads them."""
    assert explain(LimitName.MEMORY, Limits(), CEILING) == (
        "it needed more memory than the 512 MiB that this sandbox has, and was killed",
        "run it in a sandbox with more: --memory 1024 (up to 4096)",
    )


def test_the_remedy_can_be_followed() -> None:
    """What explain says to ask for is not refused."""
    for memory in (512, 3000, 4095):
        _, remedy = explain(LimitName.MEMORY, Limits(Resources(memory_mib=memory)), CEILING)
        amount = int(remedy.partition("--memory ")[2].split()[0])
        assert choose({LimitName.MEMORY: amount}, CEILING).resources.memory_mib > memory


def test_ceilings_are_settings() -> None:
    """And the defaults of both fit together."""
    found = ceilings(Settings(sandbox_max_memory=1000, sandbox_max_output=7))
    assert (found.resources.memory_mib, found.output_bytes) == (1000, 7 * MIB)
    assert choose({}, ceilings(Settings())) == Limits()


def test_a_rate_is_kept_over_time_and_a_burst_is_free() -> None:
    """A quarter of a second's bytes pass at once; then the sender waits."""
    bucket = TokenBucket(1000)
    assert bucket.delay(250, 10.0) == 0.0
    assert bucket.delay(500, 10.0) == pytest.approx(0.5)
    assert bucket.delay(0, 10.25) == pytest.approx(0.25)
    assert bucket.delay(250, 100.0) == 0.0


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60), st.integers(1000, 1_000_000))
def test_whoever_waits_as_told_never_gets_more_than_rate_and_burst(pieces: list[int], rate: int) -> None:
    """Whatever the pieces: the bytes up to any moment are bounded."""
    bucket, now, sent = TokenBucket(rate), 0.0, 0
    for piece in pieces:
        assert sent <= rate * (now + 0.25) + 1e-3
        sent += piece
        now += bucket.delay(piece, now)
    assert sent <= rate * (now + 0.25) + 1e-3


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    """Then the debt stays."""
    bucket = TokenBucket(1000)
    bucket.delay(250, 10.0)
    assert bucket.delay(1000, 9.0) == pytest.approx(1.0)
    assert bucket.delay(0, 9.5) == pytest.approx(1.0)


def test_output_passes_up_to_its_limit_and_the_rest_is_noticed() -> None:
    """Exactly the limit is no flood."""
    bound = OutputBound(10)
    assert bound.allow(4) == 4 and bound.allow(6) == 6 and not bound.exceeded
    assert bound.allow(1) == 0 and bound.exceeded
    assert bound.allow(0) == 0
