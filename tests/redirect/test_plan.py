"""What a plan refuses to hold."""

import pytest

from coatcheck.redirect.plan import AtInterface, Inside, RedirectError, check_interface


@pytest.mark.parametrize(
    "name", ["", "a" * 16, 'v" accept', "v0; drop", "v+", "v*", "-i", "../lo", "v 0", "v\n", "vé", "lo"]
)
def test_what_is_no_interface_never_reaches_a_root_tool(name: str) -> None:
    """Quotes, wildcards, options, and names that the kernel refuses; and this machine's own loopback."""
    with pytest.raises(RedirectError) as refused:
        check_interface(name)
    assert refused.value.hint
    with pytest.raises(RedirectError):
        AtInterface(name, 8443)


@pytest.mark.parametrize("name", ["veth0", "agent-1.20", "br_sandbox", "eth0", "a" * 15])
def test_ordinary_names_are_taken(name: str) -> None:
    """As the kernel and container runtimes make them."""
    check_interface(name)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"port": 0}, "0 is no listener's port"),
        ({"port": 65536}, "65536 is no listener's port"),
        ({"port": 8443, "dns_port": 8443}, "8443 is given for the listener and for the resolver"),
        ({"port": 8443, "tcp_ports": ()}, "no TCP port is redirected"),
        ({"port": 8443, "tcp_ports": (443, 443)}, "given twice"),
        ({"port": 8443, "tcp_ports": (53,)}, "TCP port 53 is DNS"),
        ({"port": 8443, "tcp_ports": tuple(range(1000, 1065))}, "at most"),
    ],
)
def test_ports_that_cannot_be_meant(given: dict, says: str) -> None:
    """Each with what to do instead."""
    with pytest.raises(RedirectError) as refused:
        AtInterface("veth0", **given)
    assert says in f"{refused.value} {refused.value.hint}" and refused.value.hint


@pytest.mark.parametrize("uid", [0, -1, 4_294_967_295])
def test_a_proxy_that_cannot_be_told_from_the_sandbox(uid: int) -> None:
    """Root runs the sandbox's set-up, and -1 is nobody."""
    with pytest.raises(RedirectError, match="both have uid"):
        Inside(uid, 8443)


def test_the_way_out_is_not_kept_out() -> None:
    """Of the listener and the resolver."""
    for port in (8443, 8053):
        with pytest.raises(RedirectError, match="both redirected to and protected"):
            Inside(990, 8443, 8053, kept_out=(port,))
