"""The act with a client that knows of no proxy; that it is shown and held is in test_main.py."""

import shutil
from io import StringIO

import pytest

from coatcheck.redirect.applying import Tool
from demo import transparent
from demo.report import Report
from demo.stage import Stage
from demo.transparent import Means, means, show_transparent


@pytest.mark.needs_debian("nft", "ip")
def test_where_it_can_be_had_it_is_found() -> None:
    """By trying: namespaces, a veth pair, a firewall."""
    found = means()
    assert isinstance(found, Means), found
    assert found.tool is Tool.NFT and "--net" in found.namespaces


@pytest.mark.needs_debian("iptables", "ip")
def test_without_nftables_it_takes_iptables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either will do."""
    really = transparent.fails
    monkeypatch.setattr(transparent, "fails", lambda words: "no nft" if "nft" in words else really(words))
    found = means()
    assert isinstance(found, Means) and found.tool is Tool.IPTABLES


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("unshare", "unshare is missing (apt-get install util-linux)"),
        ("ip", "ip is missing (apt-get install iproute2)"),
    ],
)
async def test_where_a_program_is_missing_it_says_so_and_goes_on(
    missing: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of the daemon, and no check fails."""
    really = shutil.which
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name, path=None: None if name == missing else really(name, path=path),
    )
    out = StringIO()
    report = Report(out)
    stage: Stage = None  # type: ignore[assignment]  # it is not to be touched
    await show_transparent(report, stage, "none")
    assert f"not shown  {says}" in out.getvalue() and report.checks == 0


def test_where_the_kernel_gives_nothing_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel's own words."""
    monkeypatch.setattr(transparent, "fails", lambda words: "unshare failed: Operation not permitted")
    assert means() == (
        "the kernel gives no network namespaces here (unshare failed: Operation not permitted)"
    )
