"""What a plane saw, as values."""

import pytest

from coatcheck.decision.message import Destination, OriginalDestination, RequestHead, ResponseHead


@pytest.mark.parametrize(
    ("destination", "url"),
    [
        (Destination("https", "api.example.org", 443), "https://api.example.org"),
        (Destination("https", "api.example.org", 8443), "https://api.example.org:8443"),
        (Destination("http", "api.example.org", 80), "http://api.example.org"),
        (Destination("https", "2001:db8::1", 443), "https://[2001:db8::1]"),
        (Destination("https", "", 0), "-"),
    ],
)
def test_a_destination_reads_as_people_write_it(destination: Destination, url: str) -> None:
    """Default ports are left out, IPv6 stands in brackets, an unknown one is a dash."""
    assert destination.url == url


def test_an_original_destination_reads_as_people_write_it() -> None:
    """IPv6 stands in brackets."""
    assert str(OriginalDestination("192.0.2.1", 443)) == "192.0.2.1:443"
    assert str(OriginalDestination("2001:db8::1", 443)) == "[2001:db8::1]:443"


def test_a_target_splits_at_the_first_question_mark() -> None:
    """The rest of the marks belong to the query."""
    head = RequestHead("GET", "/a?b=?c", ())
    assert (head.path, head.query) == ("/a", "b=?c")


@pytest.mark.parametrize("kind", [RequestHead, ResponseHead])
def test_headers_are_found_in_order(kind: type) -> None:
    """`get` gives the first, `get_all` all, None and empty when there is none."""
    headers = (("a", "1"), ("b", "2"), ("a", "3"))
    head = RequestHead("GET", "/", headers) if kind is RequestHead else ResponseHead(200, headers)
    assert head.get("a") == "1"
    assert head.get_all("a") == ("1", "3")
    assert head.get("c") is None
    assert head.get_all("c") == ()
