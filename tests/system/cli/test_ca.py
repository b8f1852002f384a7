"""`coatcheck ca …` as a person sees it."""

import json
import os
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from coatcheck.certificates.authority import Authority
from tests.cli.transcript import coatcheck, environment


def test_new_makes_a_ca_where_the_daemon_will_look(tmp_path: Path) -> None:
    """The directories get the modes that the daemon checks; a second run changes nothing."""
    said = coatcheck("ca", "new", "--days", "30", "--state-dir", "state", cwd=tmp_path)
    made = Authority.load(tmp_path / "state/ca")
    assert said.code == 0
    assert said.out == (
        f"certificate {tmp_path}/state/ca/ca.pem\nsha256      {made.fingerprint}\n"
        f"expires     {made.not_after:%Y-%m-%d}\n"
    )
    assert said.error.startswith("hint: restart the daemon")
    assert (made.not_after - datetime.now(UTC)).days in (29, 30)
    modes = [
        stat.S_IMODE((tmp_path / name).stat().st_mode)
        for name in ("state", "state/ca", "state/ca/ca-key.pem")
    ]
    assert modes == [0o700, 0o700, 0o600]

    again = coatcheck("ca", "new", "--state-dir", "state", cwd=tmp_path)
    assert again.code == 3 and "there is a CA in" in again.error and "--force" in again.error
    assert Authority.load(tmp_path / "state/ca").fingerprint == made.fingerprint
    forced = coatcheck("ca", "new", "--state-dir", "state", "--force", "--json", cwd=tmp_path)
    assert json.loads(forced.out)["fingerprint"] == Authority.load(tmp_path / "state/ca").fingerprint
    assert json.loads(forced.out)["fingerprint"] != made.fingerprint


def test_bundle_on_standard_output_and_as_files(tmp_path: Path) -> None:
    """Public roots and our CA; the key is in neither."""
    coatcheck("ca", "new", "--dir", "ca", cwd=tmp_path)
    ours = (tmp_path / "ca/ca.pem").read_text()
    piped = coatcheck("ca", "bundle", "--dir", "ca", cwd=tmp_path)
    assert piped.code == 0 and ours in piped.out and piped.out.count("BEGIN CERTIFICATE") > 10
    written = coatcheck("ca", "bundle", "--dir", "ca", "--out", "trust", cwd=tmp_path)
    assert written.out == "trust/coatcheck-ca.pem\ntrust/ca-bundle.pem\ntrust/truststore.p12\n"
    assert (tmp_path / "trust/ca-bundle.pem").read_text() == piped.out
    assert "PRIVATE" not in piped.out


def test_env_is_ready_to_be_evaluated(tmp_path: Path) -> None:
    """A shell that evaluates it has variables that name files which are there, by absolute paths."""
    coatcheck("ca", "new", "--dir", "ca", cwd=tmp_path)
    arguments = ("ca", "env", "--dir", "ca", "--out", "trust", "--proxy", "http://127.0.0.1:8080")
    said = coatcheck(*arguments, cwd=tmp_path)
    assert said.code == 0
    shell = subprocess.run(
        ["/bin/sh", "-c", f'{said.out}\ncat "$SSL_CERT_FILE" "$DENO_CERT" | wc -l; echo "$HTTPS_PROXY"'],
        cwd="/", env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines, proxy = shell.stdout.split()
    assert int(lines) > 1000 and proxy == "http://127.0.0.1:8080"
    variables = json.loads(coatcheck(*arguments, "--style", "json", cwd=tmp_path).out)
    assert variables["SSL_CERT_FILE"] == f"{tmp_path}/trust/ca-bundle.pem"
    assert os.path.isfile(variables["NODE_EXTRA_CA_CERTS"])


def test_a_successor_is_prepared_trusted_and_put_in_place(tmp_path: Path) -> None:
    """Clients get both, also after the switch: until its restart the daemon signs with the old."""
    coatcheck("ca", "new", "--dir", "ca", cwd=tmp_path)
    old = (tmp_path / "ca/ca.pem").read_text()
    prepared = coatcheck("ca", "new", "--next", "--dir", "ca", cwd=tmp_path)
    assert prepared.code == 0 and "certificate ca/next/ca.pem\n" in prepared.out
    assert prepared.error.endswith("once every client also trusts the new CA, run: coatcheck ca switch\n")
    new = (tmp_path / "ca/next/ca.pem").read_text()
    assert coatcheck("ca", "bundle", "--dir", "ca", cwd=tmp_path).out.startswith(old + new)
    switched = coatcheck("ca", "switch", "--dir", "ca", cwd=tmp_path)
    assert switched.code == 0 and (tmp_path / "ca/ca.pem").read_text() == new
    again = coatcheck("ca", "switch", "--dir", "ca", cwd=tmp_path)
    assert again.code == 3 and "no successor of the CA in ca is prepared" in again.error
    assert coatcheck("ca", "bundle", "--dir", "ca", cwd=tmp_path).out.startswith(new + old)
    assert coatcheck("ca", "env", "--dir", "ca", "--out", "trust", cwd=tmp_path).code == 0
    assert (tmp_path / "trust/coatcheck-ca.pem").read_text() == new + old
