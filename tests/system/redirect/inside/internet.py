"""Runs in a namespace, standard library only: answers on TCP and UDP ports, and says what reached it.

Arguments: `[uid=1000] tcp/443 udp/53@127.0.0.1 …`, without an address at all of both IP versions. TCP
clients are told "hello", UDP datagrams come back. An empty line on standard input: what was heard, then `--`.
"""

import os
import selectors
import socket
import sys

WILDCARDS = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))
SO_ORIGINAL_DST = 80


def listen(word: str, selector: selectors.BaseSelector) -> None:
    protocol, _, where = word.partition("/")
    port, _, address = where.partition("@")
    one = [(socket.AF_INET6 if ":" in address else socket.AF_INET, address)]
    for family, host in one if address else WILDCARDS:
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        sock = socket.socket(family, kind)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(port)))
        if protocol == "tcp":
            sock.listen(64)
        selector.register(sock, selectors.EVENT_READ, f"{protocol}/{port}")


def original(sock: socket.socket) -> str:
    """Where the connection was going, as the kernel remembers it."""
    try:
        if sock.family == socket.AF_INET:
            found = sock.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
            return f"{socket.inet_ntop(socket.AF_INET, found[4:8])} {int.from_bytes(found[2:4])}"
        found = sock.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
        return f"{socket.inet_ntop(socket.AF_INET6, found[8:24])} {int.from_bytes(found[2:4])}"
    except OSError:
        return "-"


def main() -> None:
    selector = selectors.DefaultSelector()
    words = sys.argv[1:]
    if words[0].startswith("uid="):
        os.setgroups([])
        os.setgid(int(words[0][4:]))
        os.setuid(int(words.pop(0)[4:]))
    for word in words:
        listen(word, selector)
    selector.register(sys.stdin, selectors.EVENT_READ, "")
    heard: list[str] = []
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if not key.data:
                if not os.read(0, 1):
                    return
                print(*heard, "--", sep="\n", flush=True)
                heard.clear()
                continue
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock.type == socket.SOCK_STREAM:
                client, peer = sock.accept()
                heard.append(f"{key.data} {peer[0]} {original(client)}")
                client.sendall(b"hello")
                client.close()
            else:
                data, peer = sock.recvfrom(2048)
                heard.append(f"{key.data} {peer[0]} -")
                sock.sendto(data, peer)


main()
