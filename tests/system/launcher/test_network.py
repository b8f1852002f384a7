"""The rules that close a guest's network, as a kernel takes them and nft(8) shows them."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs_debian("nft")

PUT = """
import socket, struct, subprocess, sys
from coatcheck.launcher.network import rules
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
kernel.sendto(rules([int(uid) for uid in sys.argv[1:]]), (0, 0))
number, error = struct.unpack_from("=I4xi", kernel.recv(65536), 8)
assert error == 0, error
subprocess.run(["nft", "-y", "-n", "list", "table", "inet", "coatcheck"], check=True)
"""
FIRST = """\
table inet coatcheck {
    chain redirect {
        type nat hook output priority -100; policy accept;
        meta skuid 1000 goto identity0
        meta skuid 1007 goto identity1
        ip daddr 127.0.0.0/8 return
        ip6 daddr ::1 return
        meta l4proto 6 redirect to :1
    }
    chain close {
        type filter hook output priority 0; policy drop;
        ip daddr 127.0.0.0/8 accept
        ip6 daddr ::1 accept
    }
"""
IDENTITY = """\
    chain identity{number} {{
        tcp dport 53-53 redirect to :{dns}
        udp dport 53-53 redirect to :{dns}
        ip daddr 169.254.0.0/16 tcp dport 80-80 redirect to :{metadata}
        ip daddr 127.0.0.0/8 tcp dport 3128-3128 redirect to :{proxy}
        tcp dport 61000-61031 redirect to :1
        udp dport 61000-61031 redirect to :1
        ip daddr 127.0.0.0/8 return
        ip6 daddr ::1 return
        meta l4proto 6 redirect to :{transparent}
    }}
"""


def in_a_namespace(*uids: int) -> str:
    """What nft shows there afterwards."""
    own = ("--net",) if os.geteuid() == 0 else ("--user", "--map-root-user", "--net")
    command = ["unshare", *own, sys.executable, "-c", PUT, *map(str, uids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stdout.expandtabs(4).splitlines() if line)


def test_the_kernel_has_the_rules_of_the_documents() -> None:
    """Each identity goes its own way by the uid that the kernel knows, and everything else is closed."""
    ports = [
        IDENTITY.format(number=number, proxy=first, transparent=first + 1, dns=first + 2, metadata=first + 3)
        for number, first in enumerate((61000, 61004))
    ]
    assert in_a_namespace(1000, 1007) == FIRST + "".join(ports) + "}"


def test_eight_identities_fit_into_one_batch() -> None:
    """As many as a sandbox may have; the last one's ports are the last that are closed to all."""
    shown = in_a_namespace(*range(1000, 1008))
    assert shown.count("goto identity") == 8 and "redirect to :61031" in shown
