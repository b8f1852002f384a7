"""Samples are read strictly, and the shipped policies answer as theirs say."""

from pathlib import Path

import pytest

from coatcheck.injectors.spelling import Wrong
from coatcheck.policy import PolicyError, load_directory, read_samples, run_samples
from coatcheck.policy.samples.samples import sample_request
from tests.cli.transcript import coatcheck

POLICIES = Path(__file__).parents[4] / "policies"
SAMPLES = sorted((POLICIES / "samples").glob("*.yaml"))
SERVICES = sorted((POLICIES / "services").glob("*.yaml"))


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_the_shipped_policy_answers_as_its_samples_say(file: Path) -> None:
    """Each sample file is named like its policy."""
    assert run_samples(load_directory(POLICIES)[file.stem], read_samples(file.read_bytes())) == []


def test_every_shipped_policy_has_samples_and_no_warning() -> None:
    """An allowed and a refused one at least."""
    assert {file.stem for file in SAMPLES} == set(load_directory(POLICIES))
    for file in SAMPLES:
        assert {sample.expect for sample in read_samples(file.read_bytes())} == {"allow", "deny"}


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_a_policy_for_a_service_answers_as_its_samples_say(file: Path) -> None:
    """Somebody copies it: what is refused is shown as well as what is allowed."""
    samples = read_samples((file.parent / "samples" / file.name).read_bytes())
    assert run_samples(load_directory(file.parent)[file.stem], samples) == []
    assert {sample.expect for sample in samples} == {"allow", "deny"}


def test_the_linter_has_nothing_to_say_about_a_policy_for_a_service(tmp_path: Path) -> None:
    """Nothing too wide, nothing without a limit, no rule without a sample."""
    said = coatcheck("policy", "check", POLICIES / "services", cwd=tmp_path)
    assert said.code == 0 and len(SERVICES) == said.out.count(": ok"), said.out


def test_there_is_a_policy_for_each_service_that_agents_use() -> None:
    """Model providers, code hosts, chat, money, clouds, trackers."""
    wanted = {
        "openai",
        "anthropic",
        "gemini",
        "github",
        "gitlab",
        "slack",
        "stripe",
        "aws-read-only",
        "linear",
    }
    assert {file.stem for file in SERVICES} >= wanted | {"notion"}


@pytest.mark.parametrize(
    "sample",
    [
        'request: "GET https://a.org/", expect: deny',
        'request: "GET https://a.org/", expect: allow, reason: host_not_allowed',
        'request: "GET https://a.org/", expect: deny, reason: host_not_allowed, credentials: [x]',
        'request: "GET https://a.org/", rule: x',
        'request: "GET https://a.org/", expect: allow, session: {origin: sockets}',
        'request: "GET https://a.org/", expect: allow, session: {user: me}',
        'request: "GET https://a.org/", expect: allow, handle: Not A Name',
        'request: "GET https://a.org/", expect: deny, reason: because',
        'request: "GET https://a.org/", expect: maybe',
        'request: "GET a.org", expect: allow',
        'expect: allow',
        'request: "GET https://a.org/", expects: allow',
    ],
)  # fmt: skip
def test_a_sample_that_makes_no_sense_is_refused(sample: str) -> None:
    """A sample that cannot fail is no test."""
    with pytest.raises(PolicyError) as refused:
        read_samples(f"samples:\n  - {{{sample}}}\n".encode())
    assert all(problem.line == 2 and problem.instead for problem in refused.value.problems)


def test_the_name_of_a_file_says_what_is_expected() -> None:
    """Then a sample need not, and may not say otherwise."""
    bare = b'samples: [{request: "GET https://a.org/"}]'
    assert [sample.expect for sample in read_samples(bare, "allow")] == ["allow"]
    said = b'samples: [{request: "GET https://a.org/", expect: allow}]'
    assert read_samples(said, "allow") == read_samples(bare, "allow")
    with pytest.raises(PolicyError, match="the file's name says deny, the sample says allow"):
        read_samples(said, "deny")
    with pytest.raises(PolicyError, match="does not fit together"):
        read_samples(bare, "deny")  # a refusal needs its reason


def test_samples_there_must_be() -> None:
    """An empty file passes nothing."""
    for data in (b"", b"samples: []\n", b"samplez: []\n"):
        with pytest.raises(PolicyError):
            read_samples(data)


def test_a_request_is_taken_apart_and_not_repaired() -> None:
    """Otherwise samples could not show what is refused."""
    request = sample_request("GET https://api.example.org:8443/a/../b?x=1")
    assert request.target == "/a/../b?x=1"
    assert request.destination is not None and request.destination.url == "https://api.example.org:8443"
    assert sample_request("GET http://api.example.org").target == "/"
    with pytest.raises(Wrong):
        sample_request("https://api.example.org/")
