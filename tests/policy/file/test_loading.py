"""Files that load and files that do not, each with what it must say; directories are all or nothing."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Destination, RequestHead
from coatcheck.decision.policy import Rule, match
from coatcheck.policy import PolicyError, Problem, check_policy, load_directory, load_file, load_policy

HERE = Path(__file__).parent
POLICIES = HERE.parents[2] / "policies"
WORKING = sorted(HERE.glob("working_*.yaml"))
BUSTED = sorted(HERE.glob("busted_*.yaml"))
GOOD = b"version: 1\nowner: security\n"
BAD = b"version: 1\nowner: security\nrulez: []\n"


def expected(file: Path) -> list[str]:
    """The lines in which a fixture says what must be said about it."""
    lines = file.read_text().splitlines()
    return [line.removeprefix("# expect: ").rstrip("; ") for line in lines if line.startswith("# expect: ")]


@pytest.mark.parametrize("file", WORKING, ids=lambda file: file.stem)
def test_a_working_file_loads_with_its_warnings(file: Path) -> None:
    """A warning never keeps a policy from loading."""
    checked = check_policy(file.stem, file.read_bytes())
    assert list(map(str, checked.warnings)) == expected(file)
    assert checked.policy.name == file.stem
    assert checked.policy.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("file", BUSTED, ids=lambda file: file.stem)
def test_a_busted_file_says_where_why_and_what_to_write_instead(file: Path) -> None:
    """Line, column, reason and remedy of every problem, and no policy."""
    with pytest.raises(PolicyError) as refused:
        load_policy(file.stem, file.read_bytes())
    assert str(refused.value).splitlines() == expected(file) != []
    assert all(problem.instead for problem in refused.value.problems if problem.level == "error")


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"owner: \x00", b"#" * (1 << 20) + b"\n", b"version: !", b"{", b"\t"]
)
def test_bytes_that_are_no_policy_are_refused(data: bytes) -> None:
    """Not UTF-8, forbidden characters, too large, not YAML."""
    with pytest.raises(PolicyError) as refused:
        load_policy("x", data)
    assert refused.value.problems[0].instead


@given(st.binary(max_size=60) | st.text(alphabet="ab:- []{}&*!|>'\"\n#,?%", max_size=60).map(str.encode))
def test_any_bytes_give_a_policy_or_a_policy_error(data: bytes) -> None:
    """Nothing else is ever raised: a reload must not die of a file."""
    rules: tuple[Rule, ...] = ()
    problems: tuple[Problem, ...] = ()
    try:
        rules = load_policy("x", data).rules
    except PolicyError as refused:
        problems = refused.problems
    assert rules == ()
    assert problems or b"version" in data


def test_a_policy_without_rules_denies_all() -> None:
    """An owner may write that down."""
    policy = load_policy("none", (HERE / "working_deny_all.yaml").read_bytes())
    answer = match(policy, Destination("https", "api.example.org", 443), RequestHead("GET", "/", ()))
    assert answer == Deny(Reason.HOST_NOT_ALLOWED)


def test_a_directory_is_loaded_by_stem() -> None:
    """The shipped directory, whose samples and schema are no policies."""
    policies = load_directory(POLICIES)
    assert "default" in policies
    assert policies["default"].name == "default"


def test_one_file_is_loaded_by_its_stem(tmp_path: Path) -> None:
    """With the same care as a directory; a missing one says so."""
    file = tmp_path / "team.yaml"
    with pytest.raises(PolicyError, match=r"team\.yaml: error: there is no such file; put it"):
        load_file(file)
    file.write_bytes(GOOD)
    assert load_file(file).name == "team"
    file.write_bytes(BAD)
    with pytest.raises(PolicyError, match=r"team\.yaml:3:1: error: unknown key"):
        load_file(file)


def test_one_bad_file_refuses_the_whole_directory(tmp_path: Path) -> None:
    """The caller keeps what it has, and learns which file and line."""
    (tmp_path / "good.yaml").write_bytes(GOOD)
    assert list(load_directory(tmp_path)) == ["good"]
    (tmp_path / "bad.yaml").write_bytes(BAD)
    with pytest.raises(PolicyError, match=r'bad\.yaml:3:1: error: unknown key "rulez"; write "rules"'):
        load_directory(tmp_path)


def test_a_directory_without_policies_is_refused(tmp_path: Path) -> None:
    """A wrong path must not look like a policy that denies all."""
    with pytest.raises(PolicyError, match="no policy file is here"):
        load_directory(tmp_path)
    with pytest.raises(PolicyError, match="cannot be read"):
        load_directory(tmp_path / "missing")


@pytest.mark.parametrize("name", ["policy.yml", "Policy.yaml", "a b.yaml"])
def test_a_file_that_would_be_overlooked_is_named(tmp_path: Path, name: str) -> None:
    """A policy that is silently not there is worse than one that is refused."""
    (tmp_path / "good.yaml").write_bytes(GOOD)
    (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(PolicyError) as refused:
        load_directory(tmp_path)
    assert refused.value.problems[0].file == name


def test_what_everybody_may_write_is_refused(tmp_path: Path) -> None:
    """File or directory: anyone who can write there makes the policy."""
    file = tmp_path / "good.yaml"
    file.write_bytes(GOOD)
    file.chmod(0o666)
    with pytest.raises(PolicyError, match=r"good\.yaml: error: anyone can write here.*chmod o-w"):
        load_directory(tmp_path)
    file.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(PolicyError, match="anyone can write here"):
        load_directory(tmp_path)


def test_links_stay_inside_the_directory(tmp_path: Path) -> None:
    """Kubernetes links each key to `..data`; a link elsewhere, a pipe or a directory is no policy."""
    outside = tmp_path / "outside.yaml"
    outside.write_bytes(GOOD)
    directory = tmp_path / "policies"
    (directory / "..2026").mkdir(parents=True)
    (directory / "..2026" / "team.yaml").write_bytes(GOOD)
    (directory / "..data").symlink_to("..2026")
    (directory / "team.yaml").symlink_to("..data/team.yaml")
    assert list(load_directory(directory)) == ["team"]
    (directory / "out.yaml").symlink_to(outside)
    with pytest.raises(PolicyError, match="leads out of the directory"):
        load_directory(directory)
    (directory / "out.yaml").unlink()
    os.mkfifo(directory / "pipe.yaml")
    with pytest.raises(PolicyError, match="not a regular file"):
        load_directory(directory)
    (directory / "pipe.yaml").unlink()
    (directory / "folder.yaml").mkdir()
    with pytest.raises(PolicyError, match=r"folder\.yaml"):
        load_directory(directory)
