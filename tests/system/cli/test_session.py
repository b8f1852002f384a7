"""`coatcheck session …` against a real daemon."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

from tests.cli.transcript import coatcheck, environment
from tests.system.cli.asks import ask_with
from tests.system.cli.conftest import Served

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


async def test_create_show_renew_rebind_revoke_list(daemon: Served) -> None:
    """One session's life, as a person types it."""
    created = await daemon.coatcheck("session", "create", "--credential", "openai", "--subject", "agent")
    assert created.code == 0, created.err
    lines = dict(line.split(None, 1) for line in created.out.splitlines())
    session = lines["session"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", lines["proxy"])
    assert re.match(r"openai OPENAI_API_KEY sk-cch_\S+$", lines["handle"])
    assert re.fullmatch(f"until {TIME}", lines["lease"])

    shown = (await daemon.coatcheck("session", "show", session)).out
    assert re.search(f"^id +{session}\nstatus +live\ntenant +local\nsubject +agent\npolicy +default\n", shown)
    assert re.search(r"\nhandle +\S{16} openai\n", shown) and "cch_" not in shown

    renewed = await daemon.coatcheck("session", "renew", session, "--lease", "300")
    assert renewed.code == 0 and re.fullmatch(f"{session}: until {TIME}\n", renewed.out)
    rebound = await daemon.coatcheck("session", "rebind", session)
    assert rebound.code == 0
    assert re.fullmatch(
        rf"{session}: generation 2\nhandle    openai OPENAI_API_KEY sk-cch_\S+\n", rebound.out
    )
    assert rebound.out.split()[-1] != lines["handle"].split()[-1]
    revoked = await daemon.coatcheck("session", "revoke", session, "--why", "a test")
    assert (revoked.code, revoked.out) == (0, f"{session}: revoked\n")
    listed = (await daemon.coatcheck("session", "list")).out
    heading, row = listed.splitlines()
    assert heading.split() == ["SESSION", "STATUS", "TENANT/SUBJECT", "POLICY", "LEASE", "UNTIL"]
    assert row.split() == [session, "revoked", "local/agent", "default", "-"]
    assert (await daemon.coatcheck("session", "ls")).out == listed
    none = await daemon.coatcheck("session", "list", "--status", "live")
    assert (none.out, none.err) == ("", "no sessions\n")

    again = await daemon.coatcheck("session", "renew", session)
    assert (again.code, again.out) == (3, "") and session in again.error


async def test_a_created_session_works_from_a_shell(daemon: Served) -> None:
    """`eval "$(coatcheck session create --style sh)"` is all that a client needs."""
    created = await daemon.coatcheck("session", "create", "--style", "sh")
    assert created.code == 0 and set(re.findall("(?m)^(export )?", created.out)) <= {"export ", ""}
    variables = json.loads((await daemon.coatcheck("session", "create", "--style", "json")).out)
    names = set(re.findall(r"(?m)^export ([A-Za-z_][A-Za-z0-9_]*)=", created.out))
    assert names == set(variables) and {"OPENAI_API_KEY", "https_proxy", "SSL_CERT_FILE"} <= names
    shell = await asyncio.to_thread(
        subprocess.run, ["/bin/sh", "-c", f"{created.out}\n{ask_with()}"],
        env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert shell.stdout == "200\n"


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    """The likeliest error of all."""
    said = coatcheck("session", "list", "--socket", "gone.sock", cwd=tmp_path)
    assert (said.code, said.out) == (3, "")
    assert said.error.startswith("error: cannot talk to the daemon at gone.sock: No such file or directory\n")
    assert "coatcheck serve" in said.error


async def test_explain_asks_the_daemon_about_a_session(daemon: Served) -> None:
    """What this session would get, with the credentials that it was granted."""
    created = json.loads(
        (await daemon.coatcheck("session", "create", "--credential", "anthropic", "--json")).out
    )
    session = created["session"]["id"]
    arguments = ("policy", "explain", "GET", "https://api.openai.com/v1/models", "--session", session)
    said = await daemon.coatcheck(*arguments)
    assert said.code == 0 and "openai: the session was not granted it" in said.out
    answer = json.loads((await daemon.coatcheck(*arguments, "--json")).out)
    assert answer["allowed"] is True and answer["policy"] == "default"
    refused = await daemon.coatcheck(
        "policy", "explain", "GET", "https://evil.example/", "--session", session
    )
    assert refused.code == 1 and "host_not_allowed" in refused.out
