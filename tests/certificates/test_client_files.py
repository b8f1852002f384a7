"""The files beside the bundle: each names it so that its client finds it."""

import configparser
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from coatcheck.certificates.client_environment import environment, file_variables
from coatcheck.certificates.client_files import APT, NODE, PHP, WGETRC, client_files
from coatcheck.certificates.trust import TrustFiles

BUNDLE = PurePosixPath("/srv/it has a space/ca-bundle.pem")


def test_every_file_names_the_bundle_where_its_client_sees_it() -> None:
    """Also in a sandbox, whose paths are others than ours."""
    written = {
        path.relative_to(BUNDLE.parent).as_posix(): content for path, content in client_files(BUNDLE).items()
    }
    assert written[WGETRC] == f"ca_certificate = {BUNDLE}\n".encode()
    assert re.fullmatch(rb'Acquire::https::CAInfo "(.*)";\n', written[APT])[1].decode() == str(BUNDLE)  # type: ignore[index]
    ini = configparser.ConfigParser()
    ini.read_string("[php]\n" + written[f"{PHP}/coatcheck.ini"].decode())
    assert {value.strip('"') for value in ini["php"].values()} == {str(BUNDLE)}
    assert set(written) == {WGETRC, APT, f"{PHP}/coatcheck.ini", NODE}


def test_every_variable_names_one_of_them() -> None:
    """Node does not start without its own, and apt and wget do nothing."""
    bundle = Path("/trust/ca-bundle.pem")
    given = environment(file_variables(TrustFiles(Path("/trust/ca.pem"), bundle, Path("/trust/store.p12"))))
    written = {str(path) for path in client_files(bundle)}
    named = {value.removeprefix('--require "').strip('":') for value in given.values()}
    assert {f"{name}/coatcheck.ini" if name.endswith(PHP) else name for name in named} == written


@pytest.mark.needs_debian("node")
def test_a_program_of_node_without_a_proxy_is_as_it_was(tmp_path: Path) -> None:
    """The file changes nothing where no variable names a proxy, whatever its path."""
    place = tmp_path / 'a "quoted" place'
    place.mkdir()
    for path, content in client_files(place / "ca-bundle.pem").items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content)
    files = TrustFiles(place / "ca.pem", place / "ca-bundle.pem", place / "store.p12")
    given = environment(file_variables(files)) | {"PATH": "/usr/bin:/bin"}
    program = "console.log(String(require('https').Agent.prototype.createConnection).includes('tunnelled'))"
    for proxied, answer in (({}, "false\n"), ({"HTTPS_PROXY": "http://127.0.0.1:9"}, "true\n")):
        ran = subprocess.run(
            ["node", "-e", program], env=given | proxied, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", answer)
