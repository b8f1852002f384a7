"""`coatcheck policy diff` as a person and a pipeline see it."""

import json
from pathlib import Path

from tests.cli.transcript import coatcheck


def test_a_reviewer_sees_what_widens_and_a_gate_stops_it(policies: Path) -> None:
    """The sentence, its hosts, and an exit code; nothing changes without a change."""
    new = policies.parent / "new.yaml"
    old = policies / "default.yaml"
    new.write_text(
        old.read_text().replace("hosts: [api.github.com]", "hosts: [api.github.com, gist.github.com]")
    )
    said = coatcheck("policy", "diff", old, new, "--fail-on", "widen", cwd=policies.parent)
    assert (said.code, said.error) == (1, "note: exit code 1, as --fail-on widen asks: it widens\n")
    assert said.out.splitlines() == [
        "widens: sessions of policy `new` may now send credential `github-api` to 1 more host",
        "    gist.github.com: GET, HEAD on /repos/**, /search/**, /user",
        "1 widens, 0 narrow, 0 otherwise",
    ]
    same = coatcheck("policy", "diff", policies, policies, "--fail-on", "change", cwd=policies.parent)
    assert (same.code, same.out) == (0, "nothing changes in meaning\n")


def test_a_pull_request_gets_markdown_and_a_program_json(policies: Path) -> None:
    """What narrows passes a gate against widening."""
    new = policies.parent / "new.yaml"
    old = policies / "default.yaml"
    new.write_text(old.read_text().replace("methods: [GET, HEAD]", "methods: [GET]"))
    arguments = ("policy", "diff", old, new, "--fail-on", "widen")
    markdown = coatcheck(*arguments, "--markdown", cwd=policies.parent)
    assert markdown.code == 0 and "**Narrows**" in markdown.out and "**Widens**" not in markdown.out
    (change,) = json.loads(coatcheck(*arguments, "--json", cwd=policies.parent).out)
    assert (change["direction"], change["credential"]) == ("narrows", "github-api")
    assert change["requests"][0]["methods"] == ["HEAD"]


def test_what_it_cannot_do_it_says(policies: Path) -> None:
    """A gate that compared nothing must not stand open."""
    gone = coatcheck("policy", "diff", "gone.yaml", policies / "default.yaml", cwd=policies.parent)
    assert gone.code == 3 and gone.error.startswith("error: gone.yaml does not exist")
    odd = coatcheck("policy", "diff", policies, policies, "--fail-on", "widens", cwd=policies.parent)
    assert odd.code == 2 and odd.error.endswith("hint: write one of: widen, narrow, change, never\n")
