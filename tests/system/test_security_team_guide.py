"""docs/security-team.md, walked: its commands in order, with the output that it shows."""

import getpass
import http.server
import os
import re
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coatcheck.decision.denial import Reason
from coatcheck.policy.editor_schema import SNIPPETS
from coatcheck.policy.file.reading import read
from tests import debian
from tests.guide_walk import Block, Shell, blocks, fits, type_in
from tests.known_secrets import known_secret
from tests.policy.test_editor_schema import filled
from tests.system.e2e.conftest import place
from tests.upstreams import UpstreamTls

__all__ = ["place"]

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs/security-team.md").read_text().partition("\n# The policy tools\n")[0]
WORDS_A_MINUTE = 200
"""That somebody reads, of text, commands and what they show alike."""
KEYS_A_MINUTE = 200
"""That somebody types: 40 words."""
COMPLETED = 0.5
"""Of all letters of YAML, those that the editor writes: keys, and what a snippet has."""
PASTE, COMMAND, INSTALL = 10 / 60, 2 / 60, 1.5
"""Minutes to bring a block to the terminal, for each command of ours in it, and for pip."""
LOOKS = {"2": 2.0, "9": 2.0}
"""Minutes in a step for what it does not show: the editor's extension; the page."""
MOST = 30
"""Minutes that all of it may take, with what is between the steps."""
PATIENCE = 120.0
"""Seconds for a daemon to start or to see a new file; it takes a few on an idle machine."""


@pytest.fixture
def github(upstream_tls: UpstreamTls) -> Iterator[tuple[int, str]]:
    """What GitHub answers to the requests of this guide; the port, and the token that it takes."""
    token = known_secret("GitHub's token of the guide", prefix="ghp_", length=36)

    class GitHub(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int) -> None:
            known = self.headers["Authorization"] == f"Bearer {token}"
            self.send_response(status if known else 401)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_GET(self) -> None:
            self._answer(200)

        def do_POST(self) -> None:
            self._answer(422)

        def log_message(self, *_: object) -> None:
            """Nothing on the test's standard error."""

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(upstream_tls.certificate, upstream_tls.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], token
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def start(place: Path) -> Path:
    """Where the reader begins: the clone, and the command in a directory `tools`."""
    (place / "coatcheck/policies").mkdir(parents=True)
    (place / "coatcheck/policies/review").symlink_to(ROOT / "policies/review")
    (place / "tools").mkdir()
    (place / "tools/bin").symlink_to(Path(sys.executable).parent)
    return place


def shown(text: str) -> list[str]:
    """Without what differs from one day, machine or reader to the next."""
    for pattern, same in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME"),
        (r"ses_[0-9a-f]+", "ses_ID"),
        (r"\b[0-9a-f]{16}([0-9a-f]{48})?\b", "HEX"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
        (r"\S*/coatcheck-\w{8}/", "TEMPORARY/"),
        (r"\bpid \d+", "pid PID"),
        (r"#login=\S+", "#login=CODE"),
        (r"not passed on, as they may hold secrets: .*", "not passed on"),
        (rf"\b{re.escape(getpass.getuser())}\b", "you"),
    ):
        text = re.sub(pattern, same, text)
    return text.splitlines()


class Walk:
    """One reader with two terminals."""

    def __init__(self, start: Path, environment: dict[str, str], token: str) -> None:
        self.start = start
        self.token = token
        self.first, self.second = Shell(start, environment), Shell(start, environment)
        self.pid = 0
        self.directory = start

    def take(self, block: Block) -> str:
        """What it answered."""
        if block.what in ("file", "change"):
            type_in(block, self.directory)
            return ""
        if block.what == "daemon":
            return self._daemon(block)
        waiting = re.sub(r" && sleep \d+$", "", block.text, count=1, flags=re.MULTILINE)
        if waiting != block.text:
            said, code = self._until_they_are_seen(waiting, block)
        else:
            said, code = self.first.run(block.text)
        assert code == block.code, f"line {block.line}: exit code {code}\n{said}"
        self.directory = Path(self.first.run("pwd")[0].strip())
        return said

    def _until_they_are_seen(self, text: str, block: Block) -> tuple[str, int]:
        """What a person waits for with `sleep`: the daemon reads files that were moved."""
        first, _, rest = text.partition("\n")
        self.first.run(first)
        wanted = {line for line in shown(block.shown) if line.startswith(("bundle ", "candidates: "))}
        until = time.monotonic() + PATIENCE
        while not wanted <= set(shown(self.first.run("coatcheck policy list")[0])):
            assert time.monotonic() < until, f"line {block.line}: not seen: {wanted}"
        return self.first.run(rest)

    def _daemon(self, block: Block) -> str:
        *before, last = block.text.replace("=8750\n", "=0\n").splitlines()
        self.second.type("\n".join([*before, "echo $$", f"exec {last}"]))
        self.pid = int(self.second.line())
        lines = [self.second.line()]
        while not lines[-1].endswith("coatcheck page\n"):
            lines.append(self.second.line())
        exports = [line for line in lines if line.startswith("export ")]
        put = next(line for line in lines if " read -rs SECRET " in line)
        self.first.run("".join(exports))
        said, code = self.first.run(f"{put}{self.token}")
        assert code == 0, said
        return "".join(lines)

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGINT)
        self.second.close()
        self.first.close()


@pytest.fixture
def walk(start: Path, github: tuple[int, str], upstream_tls: UpstreamTls) -> Iterator[Walk]:
    debian.need("git", "curl")
    port, token = github
    walk = Walk(
        start,
        {
            "PATH": os.environ["PATH"],
            "HOME": str(start),
            "LANG": "C.UTF-8",
            "TMPDIR": str(start),
            "GIT_AUTHOR_NAME": "reader", "GIT_AUTHOR_EMAIL": "reader@example.org",
            "GIT_COMMITTER_NAME": "reader", "GIT_COMMITTER_EMAIL": "reader@example.org",
            "COATCHECK_UPSTREAM_CA_FILE": str(upstream_tls.ca),
            "COATCHECK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
            "COATCHECK_CONNECT_TO": f'{{"api.github.com:443": "127.0.0.1:{port}"}}',
        },
        token,
    )  # fmt: skip
    yield walk
    walk.end()


def test_every_step_answers_what_the_guide_shows(walk: Walk) -> None:
    """From an empty directory to the refusals, in one go."""
    for block in blocks(GUIDE):
        said = walk.take(block)
        if block.what == "daemon":
            assert "coatcheck page" in said, "as the guide says later"
        elif not fits(shown(said), shown(block.shown)):
            assert shown(said) == shown(block.shown), f"docs/security-team.md, line {block.line}"


def minutes(step: str) -> float:
    """What a step takes of somebody who reads all of it once and does it once."""
    doing = list(blocks(step))
    files = "".join(block.text for block in doing if block.what in ("file", "change"))
    written = [line for line in re.sub(" +#.*", "", files).splitlines() if not line.startswith("-")]
    commands = [block.text for block in doing if block.what in ("run", "daemon")]
    ours = sum(text.count("coatcheck ") for text in commands)
    waits = sum(int(seconds) for text in commands for seconds in re.findall(r"sleep (\d+)", text)) / 60
    return (
        len(step.split()) / WORDS_A_MINUTE
        + sum(len(line.lstrip("+ ")) for line in written) * (1 - COMPLETED) / KEYS_A_MINUTE
        + len(commands) * PASTE + ours * COMMAND + waits
        + LOOKS.get(step[:1], 0) + ("pip install" in step) * (INSTALL + PASTE)
    )  # fmt: skip


def test_it_takes_under_half_an_hour() -> None:
    """Each heading promises minutes: enough for what is below it, and together with the rest under thirty."""
    begin, *steps = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    promised = [int(found[1]) for step in steps if (found := re.match(r"\d\. .* \((\d+) minutes?\)\n", step))]
    assert len(promised) == len(steps)
    short = {
        step.splitlines()[0]: round(needed, 1)
        for step, most in zip(steps, promised, strict=True)
        if (needed := minutes(step)) > most
    }
    assert not short, "these take longer than they say; the sum must stay under thirty"
    assert minutes(begin) + sum(promised) < MOST


def words(value: Any) -> Iterator[tuple[str, bool]]:
    """Each key and value of a YAML file, and whether it is a key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, True
            yield from words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words(inner)
    else:
        yield str(value), False


def test_the_editor_writes_what_the_guide_says() -> None:
    """What it names in bold is offered; of what stands in the files, keys and snippets leave less to type."""
    snippets = {each["label"]: filled(each["body"]) for group in SNIPPETS.values() for each in group}
    writing = GUIDE[GUIDE.index("## 2.") : GUIDE.index("## 6.")]
    assert {"… refused", *snippets} > set(re.findall(r"\*\*(.+?)\*\*", writing)) > {"policy for one API"}
    offered = {text for body in snippets.values() for text, _ in words(body)} | set(Reason)
    letters = {True: 0, False: 0}
    for block in blocks(GUIDE):
        if block.what in ("file", "change"):
            lines = [line.removeprefix("+") for line in block.text.splitlines() if not line.startswith("-")]
            for text, key in words(read("\n".join(lines).encode()).data):
                letters[key or text in offered] += len(text)
    assert letters[True] > COMPLETED * sum(letters.values()), letters
