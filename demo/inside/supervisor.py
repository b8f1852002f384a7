"""Runs INSIDE the sandbox, standard library only: the forwarder, and one program at a time.

Started as `python supervisor.py SOCKET PORT`. The host writes JSON lines: `{"run": [argv…], "input": …}`
starts a program and gives it the input as its first line; `{"finish": true}` ends the program's standard
input, which is how it learns that it may go. Back come `{"ready": …}`, `{"line": …}` for each line that
the program prints, and `{"exit": code, "errors": …}`.
"""

import json
import os
import socket
import subprocess
import sys
import threading

ERRORS = "errors.txt"
ERROR_CHARACTERS = 2000
NAMESPACES = ("user", "net", "pid", "ipc", "uts", "mnt")


def tell(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def forward(path: str, port: int) -> None:
    """127.0.0.1:port -> the Unix socket: for programs that know TCP proxies only."""
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side broke off: so must the other, or a client would wait for ever.
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            proxy = socket.socket(socket.AF_UNIX)
            try:
                proxy.connect(path)
            except OSError:
                client.close()
                continue
            for ends in ((client, proxy), (proxy, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def relay(program: "subprocess.Popen[bytes]") -> None:
    assert program.stdout is not None
    for line in program.stdout:
        tell({"line": line.decode(errors="replace")})
    code = program.wait()
    with open(ERRORS, errors="replace") as errors:
        tell({"exit": code, "errors": errors.read()[-ERROR_CHARACTERS:]})


def main() -> None:
    forward(sys.argv[1], int(sys.argv[2]))
    tell({"ready": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}})
    program: subprocess.Popen[bytes] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "run" in asked:
            with open(ERRORS, "wb") as errors:
                program = subprocess.Popen(
                    asked["run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
                )
            assert program.stdin is not None
            program.stdin.write(json.dumps(asked["input"]).encode() + b"\n")
            program.stdin.flush()
            threading.Thread(target=relay, args=(program,), daemon=True).start()
        elif program is not None and program.stdin is not None:
            program.stdin.close()


main()
