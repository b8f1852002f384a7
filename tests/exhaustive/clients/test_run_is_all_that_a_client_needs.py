"""Real clients under `coatcheck run`: no option, file or code of their own speaks of a proxy or a CA."""

import json
import sys
from pathlib import Path

import pytest

from demo.upstreams.server import TlsServer
from tests.exhaustive.clients.conftest import Runner

MODELS = "https://api.openai.com/v1/models"
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}

PHP = """
$request = curl_init("https://api.openai.com/v1/models");
curl_setopt($request, CURLOPT_HTTPHEADER, ["Authorization: Bearer " . getenv("OPENAI_API_KEY")]);
curl_setopt($request, CURLOPT_RETURNTRANSFER, true);
echo curl_exec($request), curl_error($request);
"""

LWP = """
use LWP::UserAgent;
my $answer = LWP::UserAgent->new(env_proxy => 1)->get(
  "https://api.openai.com/v1/models", Authorization => "Bearer $ENV{OPENAI_API_KEY}");
print $answer->status_line, " ", $answer->content;
"""

NODE = {
    "fetch": """
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
fetch("https://api.openai.com/v1/models", { headers }).then((answer) => answer.text()).then(console.log);
""",
    "https": """
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
const { get } = require("https");
get("https://api.openai.com/v1/models", { headers }, (answer) => answer.pipe(process.stdout));
""",
    "an agent of its own, as stripe and aws-sdk have": """
const https = require("https");
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
const agent = new https.Agent({ keepAlive: true });
https.get("https://api.openai.com/v1/models", { headers, agent }, (answer) => {
  answer.pipe(process.stdout); answer.on("end", () => agent.destroy());
});
""",
    "a connection of its own, as ws has": """
const https = require("https"), tls = require("tls");
function tlsConnect(options) { options.path = undefined; return tls.connect(options); }
const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
const to = { host: "api.openai.com", port: 443, path: "/v1/models" };
const show = (answer) => answer.pipe(process.stdout);
https.request({ ...to, headers, createConnection: tlsConnect }, show).end();
""",
    "a module": """
import("node:https").then(({ get }) => {
  const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
  get("https://api.openai.com/v1/models", { headers }, (answer) => answer.pipe(process.stdout));
});
""",
}


def keys_seen(server: TlsServer) -> set[str | None]:
    return {seen.genuine for seen in server.seen}


@pytest.mark.needs_debian("wget")
async def test_wget(run: Runner, origin_server: TlsServer) -> None:
    """Debian's is built with GnuTLS and heeds no variable but WGETRC."""
    said = await run.shell(f'wget -q -O - --header "Authorization: Bearer $OPENAI_API_KEY" {MODELS}')
    assert "gpt-4o-mini" in said.out, said.err
    assert keys_seen(origin_server) == {"openai"}


@pytest.mark.needs_debian("/usr/share/perl5/LWP/Protocol/https.pm")
async def test_perl(run: Runner, origin_server: TlsServer) -> None:
    """LWP has roots of its own (Mozilla::CA)."""
    said = await run("perl", "-e", LWP)
    assert said.out.startswith("200 OK ") and "gpt-4o-mini" in said.out, said.out + said.err
    assert keys_seen(origin_server) == {"openai"}


@pytest.mark.needs_debian("php", "/usr/share/doc/php-curl")
async def test_php(run: Runner, origin_server: TlsServer) -> None:
    """Its curl has the roots that its settings name."""
    said = await run("php", "-r", PHP)
    assert "gpt-4o-mini" in said.out, said.out + said.err
    assert keys_seen(origin_server) == {"openai"}


@pytest.mark.needs_debian("node")
@pytest.mark.parametrize("client", NODE)
async def test_node(run: Runner, origin_server: TlsServer, client: str) -> None:
    """Debian's Node knows no NODE_USE_ENV_PROXY; and no Node heeds it for agents that clients make."""
    said = await run("node", "-e", NODE[client], NODE_OPTIONS="--max-old-space-size=256")
    assert "gpt-4o-mini" in said.out, said.out + said.err
    assert keys_seen(origin_server) == {"openai"}


@pytest.mark.needs_debian("node")
async def test_node_is_told_why(run: Runner, origin_server: TlsServer) -> None:
    """A refused host's reason is in the error, and a server of its own on loopback is no upstream."""
    program = """
const server = require("http").createServer((request, answer) => answer.end("mine")).listen(0, async () => {
  const own = await fetch(`http://127.0.0.1:${server.address().port}/`);
  console.log(await own.text());
  require("http").get(`http://localhost:${server.address().port}/`, (answer) => {
    answer.resume(); console.log(answer.statusCode); server.close();
  });
  require("https").get("https://evil.example/").on("error", (error) => console.log(error.message));
});
"""
    said = await run("node", "-e", program)
    assert said.out.startswith("mine\n") and "200\n" in said.out, said.out + said.err
    assert "no rule of the policy allows this host" in said.out
    assert origin_server.seen == []


@pytest.mark.needs_debian("npm")
async def test_npm_and_scoped_packages(run: Runner, packages: TlsServer, tmp_path: Path) -> None:
    """It asks for /@acme%2fleft; a `cafile` of the user's own is not asked; a refusal is a sentence."""
    (tmp_path / "home/.npmrc").write_text(
        "registry=https://registry.example/\ncafile=/nowhere.pem\n//registry.example/:_authToken=${NPM_TOKEN}\n"
    )
    said = await run("npm", "view", "@acme/left", "version", "dist.tarball", "--fetch-retries=0")
    assert "https://registry.example/@acme/left/-/left-1.0.0.tgz" in said.out, said.out + said.err
    assert keys_seen(packages) == {"npm"}
    refused = await run("npm", "view", "left", "--fetch-retries=0")
    assert "Coatcheck refused this request" in refused.err and "[object" not in refused.err, refused.err


@pytest.mark.needs_debian("git")
async def test_git_with_a_plain_address(run: Runner, git_host: TlsServer, tmp_path: Path) -> None:
    """No user in the URL, and no helper but ours: the user's own would give a real credential."""
    (tmp_path / "home/.gitconfig").write_text(
        '[credential]\n\thelper = "!f() { echo username=me; echo password=real; }; f"\n'
    )
    said = await run.shell(
        "git clone -q https://github.com/private.git work && test -f work/src/main.c && git config test.mine",
        **QUIET, GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="test.mine", GIT_CONFIG_VALUE_0="kept",
    )  # fmt: skip
    assert (said.code, said.out) == (0, "kept\n"), said.err
    assert keys_seen(git_host) == {"github"}


@pytest.mark.needs_debian("rclone")
async def test_rclone_trusts_the_proxy(run: Runner) -> None:
    """AWS_CA_BUNDLE, which boto3 does not need, made it fail ("unsupported transport")."""
    said = await run(
        "rclone", "lsf", ":s3,provider=AWS,env_auth=true,region=eu-central-1:bucket", "--retries=1",
        "--low-level-retries=1", "--contimeout=5s",
    )  # fmt: skip
    assert "unsupported transport" not in said.err and "certificate" not in said.err, said.err


async def test_apt_reads_an_index(run: Runner, packages: TlsServer, tmp_path: Path) -> None:
    """Over HTTPS, in directories of its own."""
    if not Path("/usr/lib/apt/methods/https").exists():
        pytest.skip("no apt here: this is no Debian")
    for name in ("lists/partial", "cache/archives/partial", "parts", "state"):
        (tmp_path / "apt" / name).mkdir(parents=True)
    (tmp_path / "apt/sources.list").write_text("deb [trusted=yes] https://deb.example/debian stable main\n")
    (tmp_path / "apt/status").write_text("")
    place = tmp_path / "apt"
    options = {
        "Dir::Etc::SourceList": f"{place}/sources.list", "Dir::Etc::SourceParts": f"{place}/parts",
        "Dir::State": f"{place}/state", "Dir::State::Lists": f"{place}/lists",
        "Dir::State::status": f"{place}/status",
        "Dir::Cache": f"{place}/cache", "APT::Sandbox::User": "root", "Acquire::Retries": "0",
    }  # fmt: skip
    said = await run("apt-get", *(f"-o{name}={value}" for name, value in options.items()), "update")
    assert "certificate" not in said.out + said.err, said.out + said.err
    assert [seen.path for seen in packages.seen][-1].startswith("/debian/dists/stable/"), said.out + said.err


async def test_boto3_needs_no_bundle_of_its_own_name(run: Runner) -> None:
    """It takes that of requests where AWS_CA_BUNDLE is not set."""
    program = (
        "import boto3, botocore.config as c\n"
        "config = c.Config(retries={'max_attempts': 1}, region_name='eu-central-1')\n"
        "try: boto3.client('s3', config=config).list_buckets()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = await run(sys.executable, "-c", program)
    assert "SSL" not in said.out and "certificate" not in said.out, said.out + said.err
    assert "upstream" in said.out or "502" in said.out or "address" in said.out or "403" in said.out, said.out


async def test_the_environment_names_only_files_that_are_there(run: Runner) -> None:
    """Node does not start, and apt and wget do nothing, when theirs is missing."""
    said = await run(
        sys.executable, "-c", "import json, os; print(json.dumps({n: v for n, v in os.environ.items()}))"
    )
    given = json.loads(said.out)
    assert "AWS_CA_BUNDLE" not in given
    assert given["NODE_OPTIONS"].startswith('--require "/') and given["PHP_INI_SCAN_DIR"].startswith(":/")
    assert given["WGETRC"].startswith("/") and given["APT_CONFIG"].startswith("/")
