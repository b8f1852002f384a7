"""Unmodified clients that know of no proxy, in a namespace, through the real daemon."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coatcheck.decision.synthetic import synthetic
from coatcheck.redirect.applying import Tool
from coatcheck.redirect.plan import AtInterface, Ipv6
from tests.known_secrets import known_secret
from tests.system.redirect.gate import Gate, Session, gate
from tests.system.redirect.world import BOX6, DNS_PORT, INTERFACE, INTERNET, INTERNET6, PORT, world
from tests.upstreams import UpstreamTls

pytestmark = pytest.mark.needs_debian("nft", "iptables", "ip", "curl", "node")

PLAN = AtInterface(INTERFACE, PORT, DNS_PORT, ipv6=Ipv6.REDIRECTED)
URL = "https://api.openai.com/v1/models"
CURL = (
    "curl",
    "--silent",
    "--show-error",
    "--max-time",
    "20",
    "--write-out",
    " %{http_code} %header{coatcheck-reason}",
)
BEARER = ("--header", "Authorization: Bearer {handle}")
PYTHON = f"""
import os, urllib.request
key = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
with urllib.request.urlopen(urllib.request.Request("{URL}", headers=key), timeout=20) as answer:
    print(answer.status, answer.read().decode())
"""
FETCH = f"""
const headers = {{ authorization: `Bearer ${{process.env.OPENAI_API_KEY}}` }};
fetch("{URL}", {{ headers }}).then(async (answer) => console.log(answer.status, await answer.text()));
"""
HTTPS = f"""
const headers = {{ authorization: `Bearer ${{process.env.OPENAI_API_KEY}}` }};
require("node:https").get("{URL}", {{ headers }}, (answer) => {{
  answer.setEncoding("utf8").on("data", (text) => console.log(answer.statusCode, text));
}});
"""
JAVA = f"""
import java.net.URI;
import java.net.http.*;
public class Ask {{
  public static void main(String[] args) throws Exception {{
    var key = "Bearer " + System.getenv("OPENAI_API_KEY");
    var request = HttpRequest.newBuilder(URI.create("{URL}")).header("Authorization", key).build();
    var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    System.out.println(answer.statusCode() + " " + answer.body());
  }}
}}
"""


@pytest.fixture(scope="module")
def running(upstream_tls: UpstreamTls) -> Iterator[Gate]:
    """A daemon, the rules, and nothing of all that is done here ever in the internet."""
    key = known_secret("the origin's OpenAI key", prefix="sk-proj-")
    with world() as made, gate(made, {"openai": key}, upstream_tls) as there:
        made.host.apply(PLAN, Tool.NFT)
        yield there
        assert (made.internet.read(), made.services.read()) == ([], [])


@pytest.fixture(scope="module")
def session(running: Gate) -> Session:
    return running.open_session()


@pytest.fixture(scope="module")
def session6(running: Gate) -> Session:
    """The same sandbox, seen by its other address: to the daemon, somebody else."""
    return running.open_session(BOX6)


def curl(running: Gate, session: Session, *arguments: str) -> str:
    return running.run(session, *CURL, *(each.format(handle=session.handle) for each in arguments))


def served(running: Gate, said: str) -> None:
    """The API's own answer, to a request that arrived with the real key."""
    assert "gpt-" in said and "200" in said, said
    assert running.seen()["genuine"] == "openai"


def test_curl_over_ipv4(running: Gate, session: Session) -> None:
    """The audit log has the synthetic address as what it was: evidence."""
    served(running, curl(running, session, "--ipv4", *BEARER, URL))
    made = synthetic("api.openai.com")
    decision = running.decisions()[-1]
    assert made is not None and decision["original"] == f"{made.ipv4}:443"
    assert (decision["origin"], decision["outcome"]) == ("address", "inject")


def test_curl_over_ipv6(running: Gate, session6: Session) -> None:
    """The handle of the session whose origin is the IPv6 address."""
    served(running, curl(running, session6, "--ipv6", *BEARER, URL))
    made = synthetic("api.openai.com")
    assert made is not None and running.decisions()[-1]["original"] == f"[{made.ipv6}]:443"


def test_pythons_urllib(running: Gate, session6: Session) -> None:
    """It takes the first address, which is an IPv6 one (RFC 6724)."""
    served(running, running.run(session6, sys.executable, "-c", PYTHON))


@pytest.mark.parametrize("program", [FETCH, HTTPS], ids=["fetch", "https"])
def test_node(running: Gate, session: Session, program: str) -> None:
    """Which honours no proxy variable at all."""
    served(running, running.run(session, "node", "--dns-result-order=ipv4first", "-e", program))


def test_java(running: Gate, session: Session, tmp_path: Path) -> None:
    """Which reads no proxy variable either; its trust store comes by JAVA_TOOL_OPTIONS."""
    if shutil.which("javac", path="/usr/bin") is None:
        pytest.skip("there is no JDK (javac) on this machine, and nothing else needs one")
    source = tmp_path / "Ask.java"
    source.write_text(JAVA)
    options = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    served(running, running.run(session, "java", *options, str(source)))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("https://elsewhere.example/",), "403 host_not_allowed"),
        # Without TLS the handle is seen before the host is judged: an alarm.
        (("http://elsewhere.example/",), "403 handle_wrong_host"),
        # An address written down, and no name: it could be anybody's.
        (("--insecure", f"https://{INTERNET}/"), "421 authority_mismatch"),
        (("--resolve", f"other.example:443:{INTERNET}", "https://other.example/"), "403 host_not_allowed"),
        # The address of one name, the name of another.
        (("--connect-to", "api.openai.com:443:elsewhere.example:443", URL), "421 authority_mismatch"),
    ],
    ids=["another host", "plain http", "a literal address", "a host at a chosen address", "two names"],
)  # fmt: skip
def test_elsewhere_is_refused_in_words(
    running: Gate, session: Session, arguments: tuple[str, ...], answer: str
) -> None:
    """In the client's own TLS, by a reason that says who restricted it."""
    said = curl(running, session, "--ipv4", *BEARER, *arguments)
    assert said.endswith(f" {answer}"), said


def test_an_allowed_name_at_a_chosen_address_is_dialled_by_name(running: Gate, session: Session) -> None:
    """What the sandbox dialled is not where the request goes (I2)."""
    served(running, curl(running, session, "--resolve", f"api.openai.com:443:{INTERNET}", *BEARER, URL))
    assert running.decisions()[-1]["original"] == f"{INTERNET}:443"


def test_a_handle_of_the_other_address_is_worth_nothing(
    running: Gate, session: Session, session6: Session
) -> None:
    """Each session's handles count on its own origin."""
    said = curl(running, session, "--ipv6", *BEARER, URL)
    assert re.search(r" 40[13] handle_stolen$", said), said
    assert session6.handle != session.handle


def test_who_has_no_session_is_nobody(running: Gate, session: Session) -> None:
    """A source address that the daemon was never told of, on the right interface."""
    running.world.box.ip("addr add 10.77.0.9/24 dev eth0")
    said = curl(running, session, "--interface", "10.77.0.9", *BEARER, URL)
    assert said.endswith(" 407 origin_unknown"), said


def test_the_same_through_iptables(running: Gate, session: Session, session6: Session) -> None:
    """Both IP versions; nothing is redirected to the explicit proxy's grammar by it."""
    running.world.host.apply(PLAN, Tool.IPTABLES)
    served(running, curl(running, session, "--ipv4", *BEARER, URL))
    served(running, curl(running, session6, "--ipv6", *BEARER, URL))
    said = curl(running, session6, "--ipv6", "--insecure", f"https://[{INTERNET6}]/")
    assert said.endswith(" 421 authority_mismatch"), said
