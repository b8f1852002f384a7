"""Runs in the sandbox, standard library only: tries what is asked for, and says what came of each.

    [uid=1000] tcp ADDRESS PORT | udp ADDRESS PORT | ping ADDRESS | hopbyhop ADDRESS PORT
    fragment ADDRESS PORT | bound ADDRESS PORT DEVICE | spoofed ADDRESS PORT SOURCE

All at once, each with the same deadline. `answered`, or the error's name.
"""

import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable

SECONDS = 1.2
"""For an answer over two wires of the kernel's own, on a machine that is busy."""


def tcp(address: str, port: str) -> bytes:
    with socket.socket(family(address), socket.SOCK_STREAM) as sock:
        sock.settimeout(SECONDS)
        sock.connect((address, int(port)))
        return sock.recv(16)


def udp(address: str, port: str) -> bytes:
    with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
        return ask(sock, address, int(port))


def bound(address: str, port: str, device: str) -> bytes:
    """TCP out of one device, whatever the routes say; needs no privilege since Linux 5.7."""
    with socket.socket(family(address), socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sock.settimeout(SECONDS)
        sock.connect((address, int(port)))
        return sock.recv(16)


def spoofed(address: str, port: str, source: str) -> bytes:
    """A datagram from another address of ours than the one that leads back to us."""
    with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
        sock.bind((source, 0))
        return ask(sock, address, int(port))


def hopbyhop(address: str, port: str) -> bytes:
    """An IPv6 extension header before UDP: a filter that looks at the first header only would miss it."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        # Next header and length are the kernel's; PadN fills the eight octets (RFC 8200 4.2).
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, bytes((0, 0, 1, 4, 0, 0, 0, 0)))
        return ask(sock, address, int(port))


def fragment(address: str, port: str) -> bytes:
    """A datagram in pieces, none of which alone has both ports and data."""
    with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
        return ask(sock, address, int(port), b"x" * 1900)


def ping(address: str) -> bytes:
    six = ":" in address
    echo = struct.pack("!BBHHH", 128 if six else 8, 0, 0, 7, 1)
    if not six:
        total = sum(struct.unpack("!4H", echo))
        echo = struct.pack("!BBHHH", 8, 0, ~total & 0xFFFF, 7, 1)
    protocol = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    with socket.socket(family(address), socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(SECONDS)
        sock.sendto(echo, (address, 0))
        while True:
            said, peer = sock.recvfrom(256)
            kind = said[0] if six else said[(said[0] & 15) * 4]
            if kind in (0, 129) and peer[0] == address:  # others are answered here, too
                return b"pong"


def ask(sock: socket.socket, address: str, port: int, data: bytes = b"ping") -> bytes:
    sock.settimeout(SECONDS)
    sock.connect((address, port))
    sock.send(data)
    return sock.recv(2048)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


KINDS: dict[str, Callable[..., bytes]] = {
    "tcp": tcp, "udp": udp, "bound": bound, "spoofed": spoofed, "ping": ping, "hopbyhop": hopbyhop,
    "fragment": fragment,
}  # fmt: skip


def attempt(words: str) -> None:
    kind, *arguments = words.split()
    try:
        came = "answered" if KINDS[kind](*arguments) else "closed"
    except TimeoutError:
        came = "silence"
    except OSError as error:
        came = errno.errorcode.get(error.errno or 0, str(error))
    os.write(1, f"{words} = {came}\n".encode())


wanted = sys.argv[1:]
if wanted[0].startswith("uid="):
    os.setgroups([])
    os.setgid(int(wanted[0][4:]))
    os.setuid(int(wanted.pop(0)[4:]))
threads = [threading.Thread(target=attempt, args=(words,)) for words in wanted]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
