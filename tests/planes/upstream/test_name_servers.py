"""Whose DNS is asked, and when that is looked at again."""

from pathlib import Path

from coatcheck.planes.upstream.name_servers import NameServers


def test_the_systems_servers_are_read_anew_when_they_change(tmp_path: Path) -> None:
    """One resolver, with what it has cached, until then."""
    system = tmp_path / "resolv.conf"
    system.write_text("nameserver 192.0.2.1\n")
    names = NameServers((), system)
    first = names.resolver()
    assert names.resolver() is first
    system.write_text("nameserver 192.0.2.17\n")
    second = names.resolver()
    assert second is not first and names.resolver() is second
    system.unlink()
    assert names.resolver() is not second


def test_named_servers_stay(tmp_path: Path) -> None:
    """An operator who names them in the settings does not mean the system's."""
    system = tmp_path / "resolv.conf"
    names = NameServers(("192.0.2.1",), system)
    first = names.resolver()
    system.write_text("nameserver 192.0.2.17\n")
    assert names.resolver() is first
