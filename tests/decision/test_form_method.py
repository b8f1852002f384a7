"""A method in a form is found wherever chunks are cut, and nothing else is taken for one."""

import time

import pytest

from coatcheck.decision.form_method import FormMethods
from coatcheck.decision.message import RequestHead
from coatcheck.decision.steering import METHODS

FORM = "application/x-www-form-urlencoded"
PART = 'multipart/form-data; boundary="x"'


def forms(media: str = FORM, method: str = "POST", *, body: bool = True) -> FormMethods | None:
    return FormMethods.of(RequestHead(method, "/", (("content-type", media),), end_stream=not body))


def found(body: bytes, size: int = 1 << 20) -> set[str]:
    searched = forms(PART if body.startswith(b"--") else FORM)
    assert searched is not None
    return {method for at in range(0, len(body), size) for method in searched.feed(body[at : at + size])}


BODIES = [
    b"_method=delete",
    b"a=b&_METHOD=Delete&c=d",
    b"%5Fmethod=DELETE",
    b"_m%65thod=%44ELETE",
    b"a=1&_%4d%45%54%48%4f%44=delete",
    b"_HttpMethod=DELETE&x",
    b"a;.method=delete",
    b"a=b&+%20_method=delete",
    b"%5bmethod=delete",
    600 * b"+" + 200 * b"%20" + b"_method=delete",
    b"_method%00x=delete",
    b"x_http.method%2eoverride=delete",
    b'--x\r\nContent-Disposition: form-data; name="_method"\r\n\r\nDELETE\r\n--x--\r\n',
    b"--x\r\nContent-Disposition: form-data; name=_method\r\nContent-Type: a/b\r\n\r\ndelete\r\n--x--\r\n",
    b'--x\nContent-Disposition: form-data; name="_method"\n\nDELETE\n--x--\n',
    b'--x\r\nContent-Disposition: form-data; name="_m\\ethod"\r\nX: &\r\n\r\nDELETE\r\n--x--\r\n',
    b'--x\r\nContent-Disposition: form-data; name = " _method"\r\n\r\nDELETE\r\n--x--\r\n',
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_it_is_found_in_every_form_and_cut(body: bytes, size: int) -> None:
    """At the latest with the bytes that complete it, which are held back then."""
    assert found(body, size) == {"DELETE"}


@pytest.mark.parametrize(
    "body",
    [
        b"method=delete",
        b"payment_method=put",
        b"_method=transfer",
        b"q=_method%3Ddelete",
        b"text=the+_method+delete",
        b"_methods=delete",
        b"_method",
        b"_method=&x=delete",
        b"_method=deleted",
        b"a.method=delete",
        b"name=_method&text=" + 200 * b"a",
        b'--x\r\nContent-Disposition: form-data; name="_method"\r\n\r\ntransfer\r\n\r\ndelete\r\n'
        + 200 * b"a",
        b'--x\r\nContent-Disposition: form-data; name="methods"\r\n\r\ndelete\r\n' + 200 * b"a",
        b'--x\r\nContent-Disposition: form-data; name="_methods"\r\n\r\ndelete\r\n' + 200 * b"a",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="_method"\r\n\r\n_method\r\n--x--\r\n',
    ],
)
def test_other_fields_are_no_method(body: bytes) -> None:
    """A field that is called so and holds something else, or holds it and is called otherwise."""
    assert found(body) == found(body, 5) == set()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_part_whose_head_hides_its_method_may_have_any(size: int) -> None:
    """No client writes a hundred bytes of head for it."""
    head = b'--x\r\nContent-Disposition: form-data; name="_method"\r\nX: ' + 150 * b"a"
    assert found(head + b"\r\n\r\nDELETE\r\n--x--\r\n", size) == METHODS


def test_only_posts_with_a_form_are_searched() -> None:
    """No framework reads it elsewhere. Rack takes what has no type for a form."""
    assert forms("") is not None
    assert (
        forms() is not None
        and forms(PART) is not None
        and forms(FORM.upper() + "; charset=utf-8") is not None
    )
    assert forms("application/json") is None and forms(method="PUT") is None and forms(body=False) is None


@pytest.mark.parametrize(
    "unit", [b"_method=", b"method", b"%6d", b"%", b"&_method=put", b'name="_method', b"&x-http-method-"]
)
def test_the_search_is_linear(unit: bytes) -> None:
    """Sixteen times the body takes about sixteen times the time."""

    def cost(count: int) -> float:
        body = unit * (count // len(unit))
        best = float("inf")
        for _ in range(5):
            begun = time.process_time()
            found(body, 65_536)
            best = min(best, time.process_time() - begun)
        return best

    assert cost(1 << 20) < 24 * cost(1 << 16) + 0.01
