"""Runs inside an installed system, by its own Python: the unit's command as the unit's user, and one request.

Prints what happened as one JSON document. systemd does not run here; what it would do (directories, user,
settings) is done as the unit's lines say.
"""

import http.server
import json
import os
import pwd
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

UNIT = Path("/usr/lib/systemd/system/coatcheck.service").read_text()
SEEN: list[str] = []


def said(key: str) -> str:
    found = re.search(rf"(?m)^{key}=(.*)$", UNIT)
    assert found is not None, key
    return found[1]


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        SEEN.append(self.headers.get("Authorization", ""))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: object) -> None:
        pass


def serve_upstream() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), Upstream)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain("/upstream.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the daemon did not come up"
                time.sleep(0.1)
            else:
                return


def main() -> None:
    user = pwd.getpwnam(said("User"))
    for directory, mode in (
        (Path("/var/lib") / said("StateDirectory"), said("StateDirectoryMode")),
        (Path("/run") / said("RuntimeDirectory"), said("RuntimeDirectoryMode")),
    ):
        directory.mkdir(exist_ok=True)
        os.chown(directory, user.pw_uid, user.pw_gid)
        directory.chmod(int(mode, 8))
    lines = Path(said("EnvironmentFile").removeprefix("-")).read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    environment["PATH"] = "/usr/bin:/bin"
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "env": environment}
    serve_upstream()
    daemon = subprocess.Popen(said("ExecStart").split(), **as_user, umask=int(said("UMask"), 8))  # type: ignore[call-overload]
    try:
        control = Path("/run/coatcheck/control.sock")
        wait_for(control, daemon)
        owner = Path(f"/proc/{daemon.pid}").stat().st_uid
        made = subprocess.run(
            ["coatcheck", "session", "create", "--socket", str(control), "--style", "json"],
            **as_user, capture_output=True, text=True, check=True,
        )  # type: ignore[call-overload]  # fmt: skip
        sandbox = json.loads(made.stdout)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({"https": sandbox["HTTPS_PROXY"]}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=sandbox["SSL_CERT_FILE"])),
        )
        request = urllib.request.Request(
            "https://api.openai.com/v1/models",
            headers={"Authorization": f"Bearer {sandbox['OPENAI_API_KEY']}"},
        )
        with opener.open(request, timeout=60) as answer:
            status = answer.status
    finally:
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(60)
    version = subprocess.run(["coatcheck", "--version"], capture_output=True, text=True, check=True)
    json.dump(
        {
            "status": status,
            "seen": SEEN,
            "handle": sandbox["OPENAI_API_KEY"],
            "runs_as": pwd.getpwuid(owner).pw_name,
            "code": code,
            "version": version.stdout.strip(),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
