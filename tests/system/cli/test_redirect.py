"""`coatcheck redirect …` as a person sees it; in namespaces of its own where it changes anything."""

import json
from pathlib import Path

import pytest

from coatcheck.cli import run_command_line
from tests.cli.transcript import COATCHECK, coatcheck
from tests.system.redirect.world import Namespace, namespace, rules_of

AT = ("--interface", "agent0")


def test_print_shows_a_script_and_needs_no_root(tmp_path: Path) -> None:
    """Both tools, both placements, and what `remove` would do."""
    said = coatcheck("redirect", "print", *AT, "--port", "8443", "--dns-port", "8053", cwd=tmp_path)
    assert (said.code, said.error) == (0, "")
    assert said.out.startswith("# 1. Routes") and "nft -f - <<'END'\n" in said.out
    assert 'iifname "agent0" meta nfproto ipv4 tcp dport { 80, 443 } redirect to :8443' in said.out
    other = coatcheck("redirect", "print", *AT, "--port", "8443", "--tool", "iptables", cwd=tmp_path)
    assert "ip6tables-restore --noflush" in other.out and "nft" not in other.out
    inside = ("--inside", "--proxy-uid", "990", "--port", "8443", "--keep-out", "9900")
    removal = coatcheck("redirect", "print", *inside, "--removal", cwd=tmp_path)
    assert "delete table inet coatcheck_inside\n" in removal.out and "ip -4 rule del pref 900" in removal.out


def test_the_daemons_settings_say_where_to(tmp_path: Path) -> None:
    """Without --port: its listener, its resolver, and its control port kept out."""
    settings = {
        "COATCHECK_TRANSPARENT_PORT": "8443",
        "COATCHECK_TRANSPARENT_TRUST_ADDRESSES": "true",
        "COATCHECK_DNS_PORT": "8053",
        "COATCHECK_CONTROL_PORT": "9900",
        "COATCHECK_CONTROL_GRANTS": "grants.toml",
    }
    said = coatcheck("redirect", "print", "--inside", "--proxy-uid", "990", cwd=tmp_path, env=settings)
    assert said.code == 0, said.error
    assert "redirect to :8443" in said.out and "redirect to :8053" in said.out
    assert "tcp dport { 9900 } reject" in said.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "no interface is named"),
        ((*AT, "--inside", "--proxy-uid", "1"), "--inside and --interface exclude each other"),
        (("--inside",), "--inside and --proxy-uid belong together"),
        ((*AT, "--proxy-uid", "990"), "--inside and --proxy-uid belong together"),
        ((*AT, "--keep-out", "1"), "--keep-out is for --inside"),
        ((*AT, "--ipv6", "open"), "IPv6 cannot be 'open'"),
        ((*AT, "--tool", "ufw"), "there is no tool 'ufw'"),
        ((*AT,), "the daemon's settings name no fixed port"),
    ],
)
def test_what_does_not_go_together_is_told(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a hint, and code 2."""
    port = [] if arguments == AT else ["--port", "8443"]
    assert run_command_line(["redirect", "print", *arguments, *port]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and "\nhint: " in said.err
    assert error in said.err


def test_a_name_that_could_do_more_than_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It would end up in a root shell's script."""
    assert run_command_line(["redirect", "print", "--interface", 'v"; drop', "--port", "8443"]) == 3
    said = capsys.readouterr()
    assert said.out == "" and "is not the name of a network interface" in said.err


@pytest.mark.needs_debian("nft", "iptables", "ip")
def test_apply_and_remove_say_what_they_did() -> None:
    """For people and for programs; a second removal finds nothing, which is no error."""
    with namespace() as there:
        there.ip("link add agent0 type veth peer name peer0", "link add agent1 type veth peer name peer1")
        both = (*AT, "--interface", "agent1")
        assert run(there, "apply", *both, "--port", "8443") == (
            "agent0: TCP 80, 443 -> 8443\nagent1: TCP 80, 443 -> 8443\n"
        )
        applied = rules_of(there)
        again = json.loads(run(there, "apply", *AT, "--port", "8443", "--json"))
        assert again == {"applied": ["agent0"], "tool": "nft"}
        assert sorted(rules_of(there)) == sorted(applied)
        assert json.loads(run(there, "remove", *AT, "--json")) == {"removed": ["agent0"]}
        assert any("agent1" in line for line in rules_of(there))
        assert run(there, "remove", *both) == "agent1: removed\nhint: agent0: no Coatcheck rule was found\n"
        assert rules_of(there) == []


@pytest.mark.needs_debian("nft", "ip")
def test_without_privilege_it_says_which() -> None:
    """As root in a container that was not given it."""
    with namespace() as there:
        there.ip("link add agent0 type veth peer name peer0")
        words = ("redirect", "apply", *AT, "--port", "8443")
        ran = there.run("setpriv", "--bounding-set=-net_admin", COATCHECK, *words, check=False)
        assert ran.returncode == 3 and "not permitted" in ran.stderr
        assert "hint: run it as root, or with CAP_NET_ADMIN in the network namespace" in ran.stderr
        assert rules_of(there) == []


def run(there: Namespace, *words: str) -> str:
    ran = there.run(COATCHECK, "redirect", *words)
    return "".join(sorted([ran.stdout, ran.stderr]))
