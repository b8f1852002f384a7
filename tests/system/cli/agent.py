"""The command that `coatcheck run` starts in tests, and whether a copy of its handle works."""

import sys
import urllib.error
import urllib.request
from pathlib import Path

AGENT = (sys.executable, str(Path(__file__).parent / "asks.py"))
ENVIRON = (sys.executable, "-c", "print(open('/proc/self/environ').read())")


def refused(proxy: str, key: str, trust: Path) -> bool:
    """Whether somebody with a copy of the handle gets nothing, at the proxy that it was for."""
    import ssl

    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"https": proxy}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(trust))),
    )
    request = urllib.request.Request(
        "https://api.openai.com/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    try:
        opener.open(request, timeout=20)
    except urllib.error.HTTPError as answer:
        return answer.code in (401, 403)
    except OSError:
        return True
    return False


# --- without a daemon --------------------------------------------------------------------------------
