"""What runs below `coatcheck run` in the tests: an agent that knows nothing of Coatcheck.

python asks.py once [URL]       one request; prints its status
python asks.py for SECONDS      a request every 0.25 s; prints the statuses
python asks.py wait             prints its pid and handle, then sleeps until a signal
python asks.py until-signal     as wait, and says which signal came and leaves with 5
"""

import json
import os
import shlex
import signal
import sys
import time
import urllib.error
import urllib.request

KEY = os.environ.get("OPENAI_API_KEY", "")


def ask(url: str = "https://api.openai.com/v1/models") -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0  # the tunnel was refused, or the proxy is gone


def ask_with() -> str:
    """The shell command that asks once."""
    return f"{shlex.quote(sys.executable)} {shlex.quote(__file__)} once"


def main() -> int:
    match sys.argv[1:]:
        case ["once", *url]:
            print(ask(*url))
        case ["for", seconds]:
            until, said = time.monotonic() + float(seconds), []
            while time.monotonic() < until:
                said.append(ask())
                time.sleep(0.25)
            print(json.dumps({"statuses": said, "key": KEY, "proxy": os.environ["https_proxy"]}))
        case ["wait"] | ["until-signal"]:
            came: list[int] = []
            if sys.argv[1] == "until-signal":
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda number, _: came.append(number))
            told = {"pid": os.getpid(), "key": KEY, "proxy": os.environ["https_proxy"]}
            print(json.dumps(told), flush=True)
            until = time.monotonic() + 60
            while not came and time.monotonic() < until:
                time.sleep(0.05)
            print(json.dumps({"came": came}), flush=True)
            return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
