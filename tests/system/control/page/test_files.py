"""The page is what the package holds: nothing from elsewhere, nothing inline, nothing that parses markup."""

import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from coatcheck.control.page.files import load
from tests.system.control.conftest import Control

FILES = load()
SCRIPTS = {path: content.decode() for path, (kind, content) in FILES.items() if "javascript" in kind}


async def test_every_file_is_served_under_headers_that_stop_what_we_did_not_write(control: Control) -> None:
    """To anybody, also led here by a link: they hold no secret. Never cached, framed, or run inline."""
    assert len(FILES) >= 8
    for path, (kind, content) in FILES.items():
        answer = await control.ask("GET", path, headers={"Sec-Fetch-Site": "cross-site"})
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, kind, content)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy and "form-action 'none'" in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.wrong: list[str] = []
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self._in = tag
        self.wrong += [name for name in named if name == "style" or name.startswith("on")]
        self.ids += [named["id"]] if "id" in named else []
        self.refers += [named[name] for name in ("href", "src") if name in named]
        if tag in ("input", "select") and "id" in named:
            self.wrong += [] if f'for="{named["id"]}"' in HTML else [f"{named['id']} has no label"]

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style") and data.strip():
            self.wrong.append(data)


HTML = FILES["/page/"][1].decode()


def test_the_document_refers_to_its_own_files_and_holds_no_script() -> None:
    """No inline handler or style; each id once; each field has a label."""
    reader = Reader()
    reader.feed(HTML)
    assert reader.wrong == []
    assert len(reader.ids) == len(set(reader.ids))
    assert {ref for ref in reader.refers if not ref.startswith("#")} == {"icon.svg", "page.css", "app.js"}
    for script in SCRIPTS.values():
        for used in re.findall(r"\$\(\"([\w-]+)\"\)", script):
            assert used in reader.ids, used


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_makes_markup_or_code_from_text(path: str) -> None:
    """Text becomes text: there is no sink in which a host name could turn into an element."""
    sinks = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|setHTML|ContextualFragment|srcdoc"
    code = r"\beval\b|\bFunction\s*\(|setTimeout\(\s*[\"'`]|\bimport\s*\(|javascript:"
    assert re.findall(f"{sinks}|{code}", SCRIPTS[path]) == []
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", SCRIPTS[path])
    for module in re.findall(r"from \"\./([\w.]+)\"", SCRIPTS[path]):
        assert f"/page/{module}" in SCRIPTS


def test_other_endings_are_not_served() -> None:
    """What an editor leaves behind stays on the disk."""
    names = {each.name for each in files("coatcheck.control.page").joinpath("static").iterdir()}
    assert {path.rpartition("/")[2] or "index.html" for path in FILES} <= names
    assert all(path == "/page/" or path.endswith((".css", ".js", ".svg")) for path in FILES)
