"""What the documents say is so: generated references, commands, paths, policy examples, links."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from grimp import build_graph
from pydantic import BaseModel
from ruamel.yaml import YAML

from coatcheck.cli.commands import command_line
from coatcheck.policy import PolicyError, check_policy
from coatcheck.policy.file.validation import POLICY_PARTS

ROOT = Path(__file__).parent.parent
DOCS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("certs/*.md")]
)
POLICY_REFERENCE = ROOT / "docs/policy-reference.md"
PACKAGE = ROOT / "proxy/coatcheck"

FENCE = re.compile(r"(?m)^```(?P<kind>[a-z]*)\n(?P<text>.*?)^```$", re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`(?P<text>[^`\n]+)`")
MISTAKE = re.compile(r"(?m)^\| (?P<where>file|credential|rule) \| `(?P<written>.+?)` \| (?P<answer>.+) \|$")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(path: Path, kind: str) -> list[str]:
    return [found["text"] for found in FENCE.finditer(path.read_text()) if found["kind"] == kind]


# --- what is generated -------------------------------------------------------------------------------

GENERATOR = ROOT / "scripts/reference"


def generator() -> ModuleType:
    """`scripts/reference` as a module."""
    loader = SourceFileLoader("scripts_reference", str(GENERATOR))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


reference = generator()


def generate(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`make docs`, for another directory."""
    command = [sys.executable, str(GENERATOR), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.needs_debian("git")
@pytest.mark.parametrize("path", [*reference.FILES, *reference.TABLES])
def test_a_generated_file_is_what_the_generator_writes(path: str) -> None:
    """Settings, refusals, metrics, commands, schemas, tables. After a change of the code: `make docs`."""
    text = (ROOT / path).read_text()
    if path in reference.FILES:
        assert text == reference.FILES[path]()
    else:
        assert reference.sections(text) == set(reference.TABLES[path])
        assert text == reference.with_tables(text, reference.TABLES[path])


def test_no_other_document_has_a_generated_section() -> None:
    """Nobody would write it anew."""
    marked = {name(path) for path in DOCS if reference.sections(path.read_text())}
    assert marked <= set(reference.TABLES)


@pytest.mark.needs_debian("git")
def test_stale_files_are_reported_and_written(tmp_path: Path) -> None:
    """A missing file, and a row that was edited by hand; the text around a section stays."""
    for path in reference.TABLES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    document = tmp_path / "CONTRIBUTING.md"
    document.write_text(document.read_text().replace("| folder |", "| made up |"))
    checked = generate(tmp_path, "--check")
    assert checked.returncode == 1 and "CONTRIBUTING.md is stale: make docs" in checked.stderr
    assert checked.stderr.count("is stale") == len(reference.FILES) + 1 and "made up" in document.read_text()
    assert generate(tmp_path).returncode == 0 and generate(tmp_path, "--check").returncode == 0
    assert document.read_text() == (ROOT / "CONTRIBUTING.md").read_text()


def test_a_settings_group_begins_with_a_setting_that_exists() -> None:
    """A renamed setting would take its heading away."""
    assert reference.GROUPS.keys() <= reference.Settings.model_fields.keys()


# --- links and commands ------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_links_lead_to_files_and_headings_that_are_there(document: Path) -> None:
    """Relative ones; addresses elsewhere are not asked for."""
    targets = [found["target"] for found in LINK.finditer(FENCE.sub("", document.read_text()))]
    here = [target.partition("#") for target in targets if "://" not in target]
    assert [path for path, _, _ in here if not (document.parent / path).exists()] == []
    with_anchor = [
        (document.parent / path if path else document, anchor) for path, _, anchor in here if anchor
    ]
    assert [anchor for path, anchor in with_anchor if anchor not in anchors(path)] == []


@cache
def anchors(document: Path) -> set[str]:
    """Of its headings, as code hosts make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Every `coatcheck …` that a reader would type: in sh and plain blocks, and in inline code."""
    shown = [
        found["text"].replace("\\\n", " ") for found in FENCE.finditer(text) if found["kind"] in ("sh", "")
    ]
    lines = [line for block in shown for line in block.splitlines()]
    lines += [found["text"] for found in CODE.finditer(FENCE.sub("", text))]
    for line in lines:
        typed = re.match(r"(?:\S+=\S+ )*(?:\.venv/bin/)?coatcheck (?P<rest>\S.*)", line.strip())
        if typed is None or "…" in typed["rest"]:
            continue
        for choice in _choices(typed["rest"].partition(" #")[0]):
            yield shlex.split(choice)


def _choices(text: str) -> list[str]:
    """`policy check|test` is two commands."""
    found = re.search(r"(\S+\|\S+)", text)
    if found is None:
        return [text]
    return [text.replace(found[1], word) for word in found[1].split("|")]


@cache
def _command() -> Any:
    """All of them: made once, as it takes a while and hundreds are looked up."""
    return typer.main.get_command(command_line())


def wrong_with(words: list[str]) -> str:
    """Why the command would not take these words; empty when it would."""
    command = _command()
    typed = " ".join(["coatcheck", *words])
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0].isupper():  # a place holder: `coatcheck COMMAND --help`
            return ""
        if words[0] not in command.commands:
            return f"`{typed}`: there is no {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and word.partition("=")[0] not in known:
            return f"`{typed}`: it has no {word}"
    return ""


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_every_command_that_is_shown_exists_with_its_options(document: Path) -> None:
    """Against the command itself, not against another document."""
    assert [said for words in commands(document.read_text()) if (said := wrong_with(words))] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    """Wrong names and wrong options, in blocks and in running text."""
    text = "`coatcheck policy chekc` and\n```sh\n.venv/bin/coatcheck run --polcy x -- true\n```\n"
    assert len([words for words in commands(text) if wrong_with(words)]) == 2


# --- the map -----------------------------------------------------------------------------------------


@pytest.mark.needs_debian("git")
def test_every_module_says_in_one_line_what_it_is_for() -> None:
    """The tree in CONTRIBUTING.md is made of the folders' lines; a reader opens a file by its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", f"{PACKAGE}/*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [ROOT / path for path in listed.split("\0") if path and (ROOT / path).is_file()]
    assert len(paths) > 100
    said = {path: reference.meaning(path.relative_to(PACKAGE)) for path in paths}
    assert [name(path) for path, text in said.items() if not 10 <= len(text) <= 160] == []


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_modules_and_tests_that_are_named_exist(document: Path) -> None:
    """`decision/scrub.py`, `tests/test_docs.py`: as paths from the root or from the package."""
    named = {found["text"] for found in CODE.finditer(FENCE.sub("", document.read_text()))}
    paths = {text for text in named if re.fullmatch(r"[\w-]+(?:/[\w-]+)*\.py", text)}
    assert [
        path for path in sorted(paths) if not any((base / path).is_file() for base in (ROOT, PACKAGE))
    ] == []


def test_the_maps_name_files_and_folders_that_are_there() -> None:
    """Wherever CONTRIBUTING.md names one, and in the two diagrams of docs/architecture.md."""
    drawn = "".join(found["text"] for found in FENCE.finditer((ROOT / "docs/architecture.md").read_text()))
    text = drawn + LINK.sub("", (ROOT / "CONTRIBUTING.md").read_text())
    paths = set(re.findall(r"(?<![\w./*-])[\w-]+(?:/[\w-]+)*(?:/|\.py)(?![\w*])", text))
    assert len(paths) > 60
    assert [
        path for path in sorted(paths) if not any((base / path).exists() for base in (ROOT, PACKAGE))
    ] == []


def test_the_request_path_names_what_is_there() -> None:
    """In docs/architecture.md: `file.py  Class.method` of each step."""
    shown = (ROOT / "docs/architecture.md").read_text().partition("## One request\n")[2].partition("\n## ")[0]
    steps = re.findall(r"(?m)^([\w/]+\.py) +(\w+)(?:\.(\w+))?", shown)
    assert len(steps) >= 9
    missing = [
        (path, word)
        for path, *words in steps
        for word in words
        if word and not re.search(rf"(?m)^ *(?:async )?(?:def|class) {word}\b", (PACKAGE / path).read_text())
    ]
    assert missing == []


def threads_of_the_daemon() -> set[str]:
    """The names of all threads and thread pools that a daemon's modules make, `{…}` for what is filled in."""
    graph = build_graph("coatcheck", cache_dir=None)
    modules = {"coatcheck.daemon", "coatcheck.control.server"}
    for root in tuple(modules):
        modules |= graph.find_upstream_modules(root)
    names = set()
    for module in modules:
        path = ROOT / "proxy" / f"{module.replace('.', '/')}.py"
        for node in ast.walk(ast.parse(path.read_text())) if path.is_file() else ():
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            given = {each.arg: each.value for each in node.keywords}
            if called == "Thread":
                name = given["name"]
            elif called == "ThreadPoolExecutor" and (len(node.args) > 1 or "thread_name_prefix" in given):
                name = node.args[1] if len(node.args) > 1 else given["thread_name_prefix"]
            else:
                continue  # a pool without a name lasts for one call
            names.add(re.sub(r"\{.*\}", "{…}", ast.unparse(name).lstrip("f").strip("'\"")))
    return names


def test_the_table_of_threads_is_true() -> None:
    """Every thread that a daemon makes is in docs/architecture.md, and no other."""
    table = (
        (ROOT / "docs/architecture.md").read_text().partition("## Threads and loops")[2].partition("\n## ")[0]
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    made = threads_of_the_daemon()
    whole = {name for name in made if "{…}" not in name}
    begun = {name.partition("{…}")[0] for name in made - whole}
    assert whole <= listed
    assert {name for name in listed - whole if not name.startswith(tuple(begun))} == set()


def test_the_parts_of_the_page_have_the_headings_that_the_page_has() -> None:
    """In docs/page.md's table, in the page's order."""
    markup = (PACKAGE / "control/page/static/index.html").read_text()
    headings = [text for text in re.findall(r"<h2 id=\"\w+-title\">([^<]+)</h2>", markup) if text != "Log in"]
    rows = re.findall(r"(?m)^\| ([A-Z][^|]*) \|", (ROOT / "docs/page.md").read_text())
    assert rows == headings and len(rows) > 5


def test_every_decision_is_in_the_index_by_its_title() -> None:
    """In order; a decision that nobody finds is made a second time."""
    pages = sorted(path for path in (ROOT / "docs/adr").glob("*.md") if path.name != "README.md")
    titles = [(path.name, path.read_text().partition("\n")[0].partition(": ")[2]) for path in pages]
    rows = re.findall(r"(?m)^\| \[\d{4}\]\(([^)]+)\) \| (.+) \|$", (ROOT / "docs/adr/README.md").read_text())
    assert rows == titles and len(rows) > 30


# --- policies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_every_policy_that_is_shown_loads(document: Path) -> None:
    """A reader copies them."""
    for block in fences(document, "yaml"):
        check_policy("shown", block.encode())


def fields(parts: dict[str, type[BaseModel]]) -> set[str]:
    return {field for part in parts.values() for field in part.model_fields}


def test_the_reference_names_every_key() -> None:
    """A key that nobody can look up is as good as none."""
    coded = {
        word
        for text in CODE.findall(FENCE.sub("", POLICY_REFERENCE.read_text()))
        for word in re.findall(r"\w+", text)
    }
    assert fields(dict(POLICY_PARTS)) - coded == set()


def answers(where: str, written: str) -> list[str]:
    """What is said of a small policy with `written` in its file, its credential or its rule."""
    credential: dict[str, Any] = {
        "secret": "vault:secret/api#key",
        "hosts": ["api.openai.com"],
        "inject": {"header": "Authorization", "value": "Bearer {secret}"},
    }
    rule: dict[str, Any] = {"name": "calls", "hosts": ["api.openai.com"], "methods": ["POST"]}
    rule["credentials"] = ["api"]
    document: dict[str, Any] = {
        "version": 1,
        "owner": "docs",
        "credentials": {"api": credential},
        "rules": [rule],
    }
    changed = {"file": document, "credential": credential, "rule": rule}[where]
    changed.update(YAML(typ="safe").load(written))
    try:
        problems = check_policy("docs", json.dumps(document).encode()).warnings
    except PolicyError as refused:
        problems = refused.problems
    return [f"{problem.message}; {problem.instead}".rstrip("; ") for problem in problems]


def test_every_mistake_in_the_reference_gets_the_answer_that_stands_there() -> None:
    """Each row of its tables of mistakes, tried."""
    rows = [
        (row["where"], row["written"], row["answer"])
        for row in MISTAKE.finditer(POLICY_REFERENCE.read_text())
    ]
    assert len(rows) >= 40
    assert [row for row in rows if row[2] not in answers(row[0], row[1])] == []


# --- the changelog -----------------------------------------------------------------------------------


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    """After Keep a Changelog: what was not released stands under Unreleased, and says something."""
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## ")[0]
    assert re.search(r"(?m)^### Added\n\n- ", unreleased)
