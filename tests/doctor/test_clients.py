"""This shell's trust variables."""

from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.client_environment import trust_environment
from coatcheck.certificates.trust import write_trust_files
from coatcheck.doctor.clients import TRUST_VARIABLES, trust
from coatcheck.doctor.finding import Level
from coatcheck.platform.state_directory import StateDirectory
from tests.doctor.subject import only, subject


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.open(tmp_path / "state")


def test_variables_that_lead_to_the_present_ca(state: StateDirectory, tmp_path: Path) -> None:
    """After `ca env`; the doctor knows each PEM variable that it sets."""
    files = write_trust_files(tmp_path / "trust", Authority.create(state.ca).pem)
    environment = trust_environment(files)
    assert {name for name, value in environment.items() if value.endswith(".pem")} == set(TRUST_VARIABLES)
    found = only(trust(subject(tmp_path, environment=environment)))
    assert found.level is Level.OK and f"{len(TRUST_VARIABLES)} variables" in found.message


def test_variables_that_lead_to_an_earlier_ca(state: StateDirectory, tmp_path: Path) -> None:
    """The CA was replaced, the shell was not."""
    files = write_trust_files(tmp_path / "trust", Authority.create(state.ca).pem)
    Authority.create(state.ca, overwrite=True)
    found = only(trust(subject(tmp_path, environment=trust_environment(files))))
    assert found.level is Level.PROBLEM and "without the present CA" in found.message


def test_variables_that_lead_nowhere(tmp_path: Path) -> None:
    """Clients would fail with an error about their own files."""
    environment = {"NODE_EXTRA_CA_CERTS": str(tmp_path / "gone.pem"), "PATH": "/bin"}
    found = only(trust(subject(tmp_path, environment=environment)))
    assert found.level is Level.PROBLEM and "NODE_EXTRA_CA_CERTS" in found.message


def test_other_peoples_bundles_are_their_business(tmp_path: Path) -> None:
    """A shell without ours, or with a distribution's bundle, is no mistake."""
    (tmp_path / "roots.pem").write_text("")
    assert only(trust(subject(tmp_path))).level is Level.OK
    given = subject(tmp_path, environment={"SSL_CERT_FILE": str(tmp_path / "roots.pem")})
    assert only(trust(given)).level is Level.OK
