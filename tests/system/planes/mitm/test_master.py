"""What a daemon imports of mitmproxy, and what it does not."""

import subprocess
import sys

IMPORTED = (
    "import sys, coatcheck.daemon;"
    "print(*(name for name in sys.modules if name.startswith('mitmproxy.addons.') or '.' not in name))"
)


def test_a_daemon_has_no_web_framework_no_ldap_and_no_addon_that_it_does_not_use() -> None:
    """All of them come with one import of mitmproxy's package; a new import of that kind shows here."""
    imported = set(subprocess.check_output([sys.executable, "-c", IMPORTED], text=True).split())
    assert {name for name in imported if name.startswith("mitmproxy.addons.")} == {
        "mitmproxy.addons.proxyserver",
        "mitmproxy.addons.termlog",
    }
    assert "mitmproxy" in imported and not imported & {
        "flask",
        "werkzeug",
        "jinja2",
        "ldap3",
        "mitmproxy_windows",
    }
