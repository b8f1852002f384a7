"""certs/: no key can be committed there, its README tells the profile, and OpenSSL makes the same CA."""

import re
import subprocess
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority, CertificateError
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.trust import write_trust_files
from tests.certificates.openssl_ca import made_with_openssl

ROOT = Path(__file__).parent.parent.parent.parent
FOLDER = ROOT / "certs"
README = (FOLDER / "README.md").read_text()
SAID = tomllib.loads((FOLDER / "profile.toml").read_text())
TEMPLATES = {".gitignore", "README.md", "ca.cnf", "profile.toml", "verify"}


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines()


@pytest.mark.needs_debian("git")
def test_git_takes_the_templates_and_nothing_else() -> None:
    """Whatever a key is called, and however deep it lies."""
    made = (
        "ca-key.pem",
        "ca.pem",
        "dev/ca-key.pem",
        "next/ca-key.pem",
        "ca.key",
        "store.p12",
        "key",
        "a/b/c",
    )
    paths = [f"certs/{name}" for name in made]
    assert git("check-ignore", "--no-index", *paths) == paths
    assert git("check-ignore", "--no-index", *(f"certs/{name}" for name in TEMPLATES)) == []
    assert {Path(path).name for path in git("ls-files", "certs")} == TEMPLATES


@pytest.mark.needs_debian("git")
def test_a_key_that_the_command_makes_there_is_not_offered_to_git(tmp_path: Path) -> None:
    """In a repository with our .gitignore, by `git add --all` itself."""
    (tmp_path / "certs").mkdir()
    for name in TEMPLATES:
        (tmp_path / "certs" / name).write_bytes((FOLDER / name).read_bytes())
    Authority.create(tmp_path / "certs/ca")
    Authority.create(tmp_path / "certs/ca/next")
    for words in (["init", "-q"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, timeout=60)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert set(listed.stdout.split()) == {f"certs/{name}" for name in TEMPLATES}


def rows() -> dict[str, tuple[str, str]]:
    """The README's table of the profile: what, of the CA, of a leaf."""
    table = README.partition("## The profile\n")[2].partition("##")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1], row[2]) for row in cells if len(row) == 3}


def test_the_readme_names_the_files_that_a_sandbox_is_given(tmp_path: Path) -> None:
    """All of them, and no other."""
    write_trust_files(tmp_path, Authority.ephemeral("CA", timedelta(days=1)).pem)
    section = README.partition("## What a sandbox is given\n")[2].partition("\n## ")[0]
    named = re.findall(r"(?m)^\| `(.*?)` \|", section)
    written = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(named) == sorted(written) and len(named) == 7


def test_the_readme_has_the_profiles_figures() -> None:
    """Each row of its table, and each number of days in its text."""
    ca, leaf, rotation = SAID["ca"], SAID["leaf"], SAID["rotation"]
    found = rows()
    assert found["key"][0].startswith(f"EC {ca['curve']},") and found["key"][1].startswith(
        f"EC {leaf['curve']},"
    )
    assert all(cell.startswith(f"ECDSA with {ca['hash']},") for cell in found["signature"])
    assert found["lifetime"] == (
        f"{ca['days']} days; `--days` up to {ca['max_days']}",
        f"{leaf['days']} days; replaced {leaf['renew_before_days']} day before its end",
    )
    assert found["valid from"] == (f"{ca['backdate_hours']} hour before it is made",) * 2
    assert found["may sign CAs"][0] == f"no: path length {ca['path_length']}"
    assert found["key usage"] == (
        ", ".join(ca["key_usage"]),
        "; ".join((", ".join(leaf["key_usage"]), ", ".join(leaf["extended_key_usage"]))),
    )
    text = " ".join(README.partition("## Replacing it")[2].split())
    assert f"warn {rotation['renew_before_days']} days before the CA ends" in text
    assert f"stays trusted for {rotation['previous_days']} days" in text


def constrained(tmp_path: Path) -> Path:
    """The template with its last line taken into use."""
    text, found = re.subn(r"(?m)^#(nameConstraints = )", r"\1", (FOLDER / "ca.cnf").read_text())
    assert found == 1
    (tmp_path / "constrained.cnf").write_text(text)
    return tmp_path / "constrained.cnf"


def verify(*words: object) -> tuple[int, str]:
    done = subprocess.run(
        [FOLDER / "verify", *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs_debian("openssl")
def test_openssl_makes_a_ca_that_fits_the_profile_and_that_the_daemon_takes(tmp_path: Path) -> None:
    """By the README's own command: loaded as it is, 0600, and its leaves pass."""
    directory = made_with_openssl(tmp_path / "ca")
    authority = Authority.load(directory)
    assert authority.permits("anything.test")
    assert (
        round((authority.not_after - authority.certificate.not_valid_before_utc).days) == SAID["ca"]["days"]
    )
    (tmp_path / "leaf.pem").write_bytes(LeafIssuer(authority).issue("api.openai.com").pem)
    code, said = verify(directory / "ca.pem", "--leaf", tmp_path / "leaf.pem", "--host", "api.openai.com")
    assert (code, said.count("OK: ")) == (0, 2), said


@pytest.mark.needs_debian("openssl")
def test_the_templates_name_constraints_are_read_by_all_in_the_same_way(tmp_path: Path) -> None:
    """By the daemon, which refuses other hosts, and by openssl."""
    directory = made_with_openssl(tmp_path / "ca", constrained(tmp_path))
    authority = Authority.load(directory)
    assert authority.permits("api.openai.com") and authority.permits("github.com")
    assert not authority.permits("example.org") and not authority.permits("192.0.2.7")
    names = ("--name-constraint", "github.com", "--name-constraint", "openai.com")
    assert verify(directory / "ca.pem", *names)[0] == 0
    code, said = verify(directory / "ca.pem", *names[:2])
    assert code == 1 and "permit openai.com, github.com, not github.com" in said


@pytest.mark.needs_debian("openssl")
def test_an_intermediate_of_a_companys_ca_is_refused_as_the_readme_says(tmp_path: Path) -> None:
    """By the daemon at its start, and by the script, both in words."""
    made_with_openssl(tmp_path / "company")
    directory = tmp_path / "ca"
    directory.mkdir(mode=0o700)
    requested = (
        "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=Intermediate "
        "-keyout ca-key.pem -out ../request.pem"
    )
    signed = (
        "openssl x509 -req -in ../request.pem -CA ../company/ca.pem -CAkey ../company/ca-key.pem "
        f"-CAcreateserial -days 30 -extfile {FOLDER / 'ca.cnf'} -extensions ca -out ca.pem"
    )
    for command in (requested, signed):
        subprocess.run(["sh", "-ec", command], cwd=directory, check=True, capture_output=True, timeout=60)
    with pytest.raises(CertificateError, match="not one of our root CAs"):
        Authority.load(directory)
    code, said = verify(directory / "ca.pem")
    assert code == 1 and "it is an intermediate of CN=Coatcheck CA" in said
