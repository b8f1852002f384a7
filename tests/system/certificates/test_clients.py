"""Real clients accept our leaves with nothing but the variables that `coatcheck ca env` prints."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from coatcheck.certificates.authority import Authority
from coatcheck.certificates.client_environment import (
    environment,
    proxy_variables,
    trust_variables,
)
from coatcheck.certificates.leaf import LeafIssuer
from coatcheck.certificates.trust import TrustFiles, write_trust_files
from tests.certificates.endpoint import Endpoint
from tests.debian import need

HOST = "api.example.test"
REFUSED = re.compile(
    r"local issuer certificate|certificate verif|UnknownIssuer|UNABLE_TO_VERIFY|verify the first certificate"
    r"|PKIX path building failed",
    re.IGNORECASE,
)
"""How a client says that it does not trust who signed; anything else would be another failure."""


@dataclass(frozen=True)
class Client:
    """A program, what it prints once the TLS handshake was good, and where it comes from."""

    name: str
    command: tuple[str, ...]
    accepted: str
    debian: str = ""
    optional: str = ""
    stdin: str = ""
    through_proxy: bool = True


def python(name: str, code: str, accepted: str = "status 200") -> Client:
    return Client(name, (sys.executable, "-c", code), accepted)


NODE_LOOKUP = """
const dns = require("node:dns");
dns.lookup = (host, options, done) => {
  if (host !== "api.example.test") throw new Error(host);
  const all = [{ address: "127.0.0.1", family: 4 }];
  options.all ? done(null, all) : done(null, all[0].address, 4);
};
const url = `https://api.example.test:${process.argv[1]}/`;
"""
"""Node 20 knows no proxy variable, so that the name is sent to loopback inside it."""

JAVA = """
import java.net.URI;
import java.net.http.*;
public class Fetch {
  public static void main(String[] args) throws Exception {
    var request = HttpRequest.newBuilder(URI.create("https://api.example.test/")).build();
    var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.println("status " + answer.statusCode());
  }
}
"""

BOTO3 = f"""
import boto3, botocore.config, botocore.exceptions
config = botocore.config.Config(retries={{"total_max_attempts": 1}}, s3={{"addressing_style": "path"}})
s3 = boto3.client("s3", endpoint_url="https://{HOST}", region_name="eu-north-1", config=config,
                  aws_access_key_id="none", aws_secret_access_key="none")
try:
    s3.get_object(Bucket="bucket", Key="key")
except botocore.exceptions.ClientError as error:
    print("status", error.response["ResponseMetadata"]["HTTPStatusCode"])
"""

AIOHTTP = f"""
import asyncio, aiohttp
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session, session.get("https://{HOST}/") as answer:
        print("status", answer.status)
asyncio.run(main())
"""

CLIENTS = (
    Client("curl", ("curl", "-sS", "-o", "/dev/null", "-w", "status %{http_code}", f"https://{HOST}/"),
           "status 200", debian="curl"),
    Client("git", ("git", "ls-remote", f"https://{HOST}/repository.git"), "not found", debian="git"),
    Client("openssl",
           ("openssl", "s_client", "-proxy", "{proxy}", "-connect", f"{HOST}:443", "-servername", HOST,
            "-verify_hostname", HOST, "-verify_return_error", "-brief"),
           "Verification: OK", debian="openssl"),
    python("urllib", f"import urllib.request as r; print('status', r.urlopen('https://{HOST}/').status)"),
    python("requests", f"import requests; print('status', requests.get('https://{HOST}/').status_code)"),
    python("httpx", f"import httpx; print('status', httpx.get('https://{HOST}/').status_code)"),
    python("aiohttp", AIOHTTP),
    python("boto3", BOTO3, "status 404"),
    Client("pip",
           (sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--retries", "0",
            "--disable-pip-version-check", "--index-url", f"https://{HOST}/simple/", "no-such-thing"),
           "No matching distribution found"),
    Client("uv",
           (str(Path(sys.executable).with_name("uv")), "pip", "compile", "--no-config", "--no-cache",
            "--python", sys.executable, "--default-index", f"https://{HOST}/simple/", "-"),
           "was not found in the package registry", optional="uv", stdin="no-such-thing\n"),
    Client("node-https",
           ("node", "-e", NODE_LOOKUP + 'require("https").get(url, a => console.log("status", a.statusCode))',
            "{port}"),
           "status 200", debian="node", through_proxy=False),
    Client("node-fetch",
           ("node", "-e", NODE_LOOKUP + 'fetch(url).then(a => console.log("status", a.status))', "{port}"),
           "status 200", debian="node", through_proxy=False),
    Client("java", ("java", "-XX:TieredStopAtLevel=1", "{java}"), "status 200", optional="javac"),
    Client("cargo",
           ("cargo", "search", "--index", f"sparse+https://{HOST}/", "no-such-thing"),
           "config.json not found in registry", optional="cargo"),
)  # fmt: skip


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.ephemeral("Coatcheck test CA", ttl=timedelta(days=1))


@pytest.fixture(scope="module")
def trust(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> TrustFiles:
    return write_trust_files(tmp_path_factory.mktemp("trust files"), authority.pem)  # a space, for quoting


@pytest.fixture(scope="module")
def endpoint(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    issuer = LeafIssuer(authority)
    with Endpoint(issuer, issuer.issue(HOST), tmp_path_factory.mktemp("endpoint")) as running:
        yield running


def run(client: Client, endpoint: Endpoint, variables: dict[str, str], directory: Path) -> str:
    """What `client` prints, in an environment of nothing but `variables`."""
    if client.debian:
        need(client.debian)
    source = directory / "Fetch.java"
    source.write_text(JAVA)
    proxy = endpoint.proxy_url.removeprefix("http://")
    places = {"{proxy}": proxy, "{port}": str(endpoint.port), "{java}": str(source)}
    base = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    if client.name == "cargo":
        # rustup's shim finds its toolchain under the real home.
        base["RUSTUP_HOME"] = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    if client.name == "pip":
        base["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(
        [places.get(word, word) for word in client.command],
        env=base | variables, cwd=directory, input=client.stdin, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def present(client: Client) -> None:
    if client.optional == "uv" and not Path(client.command[0]).exists():
        pytest.skip("uv is not installed in this environment")
    if client.optional in ("javac", "cargo") and shutil.which(client.optional) is None:
        pytest.skip(f"{client.optional} is not installed: {client.name} is tested where it is")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_told_by_its_environment_accepts_our_leaf(
    client: Client, endpoint: Endpoint, trust: TrustFiles, tmp_path: Path
) -> None:
    """Trust and proxy variables alone, no option and no system store, make this client talk to us."""
    present(client)
    asked_before = len(endpoint.targets)
    variables = environment(trust_variables(trust), proxy_variables(endpoint.proxy_url))
    output = run(client, endpoint, variables, tmp_path)
    assert client.accepted in output and not REFUSED.search(output), output
    if client.through_proxy:
        assert f"{HOST}:443" in endpoint.targets[asked_before:], "it did not use the proxy"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_not_told_refuses_our_leaf(client: Client, endpoint: Endpoint, tmp_path: Path) -> None:
    """Without the trust variables the same command fails, and because of the certificate: the test
    above shows their effect, not that of a client which checks nothing."""
    present(client)
    output = run(client, endpoint, environment(proxy_variables(endpoint.proxy_url)), tmp_path)
    assert REFUSED.search(output), output
    assert client.accepted not in output or client.name == "pip", output  # pip says that either way


@pytest.mark.needs_debian("curl")
def test_an_inherited_no_proxy_does_not_lead_past_the_proxy(
    endpoint: Endpoint, trust: TrustFiles, tmp_path: Path
) -> None:
    """A host's NO_PROXY=* is overridden: curl still asks the proxy."""
    asked_before = len(endpoint.targets)
    inherited = {"NO_PROXY": "*", "no_proxy": "*"}
    variables = environment(trust_variables(trust), proxy_variables(endpoint.proxy_url))
    output = run(CLIENTS[0], endpoint, inherited | variables, tmp_path)
    assert "status 200" in output
    assert endpoint.targets[asked_before:] == [f"{HOST}:443"]
