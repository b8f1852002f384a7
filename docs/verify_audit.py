"""Checks an audit log of Coatcheck without a line of Coatcheck's code: Python's standard library alone.

    python3 verify_audit.py --key audit-key.pub [--checkpoints kept.jsonl] OLDEST.jsonl … NEWEST.jsonl

What is checked, and what each check is worth, stands in audit-log.md beside this file. Exit code: 0 whole,
1 broken, 2 not checked. It is short so that you can read it before you trust it.
"""

import argparse
import base64
import hashlib
import json
import sys

# --- Ed25519 (RFC 8032, 5.1): verification only, written to be read; some milliseconds a signature -----

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def add(a, b):
    """Two points, in extended homogeneous coordinates (5.1.4)."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    return ((f - e) * (h - g) % P, (h + g) * (f + e) % P, (h - g) * (h + g) % P, (f - e) * (f + e) % P)


def times(factor, point):
    total = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            total = add(total, point)
        point, factor = add(point, point), factor >> 1
    return total


def decode(octets):
    """A point from its 32 octets (5.1.3), or None."""
    y = int.from_bytes(octets, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    x = P - x if x & 1 != sign else x
    return (x, y, 1, x * y % P)


BASE = decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def signature_holds(key, message, signature):
    """Whether the 64 octets `signature` are those of the owner of the public `key` (32 octets) (5.1.7)."""
    if len(key) != 32 or len(signature) != 64:
        return False
    public, r, s = decode(key), decode(signature[:32]), int.from_bytes(signature[32:], "little")
    if public is None or r is None or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(s, BASE), add(r, times(k, public))
    return all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))


# --- the log ---------------------------------------------------------------------------------------------


def public_key(path):
    """The 32 octets in a PEM file: 12 octets of DER say `Ed25519` (RFC 8410)."""
    with open(path, encoding="ascii") as file:
        der = base64.b64decode("".join(line for line in file if "-----" not in line))
    if len(der) != 44 or der[:12].hex() != "302a300506032b6570032100":
        sys.exit(f"{path} holds no Ed25519 public key")
    return der[12:]


def records(paths):
    """(where, line, record) of each line, oldest first. A record that cannot be read is None."""
    for path in paths:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    record["seq"], record["prev"], record["type"]
                except (ValueError, KeyError, TypeError):
                    record = None
                yield f"{path}:{number}", number, line, record


def check(paths, keys, kept):
    """All that is wrong, in words; and (first, last, last signed) record."""
    wrong, seq, digest, log, signed = [], 0, "0" * 64, None, 0
    first = begins = None
    missing = {record["seq"]: line for _, _, line, record in records([kept] if kept else []) if record}
    for where, number, line, record in records(paths):
        if where.startswith(f"{paths[-1]}:") and not line.endswith(b"\n"):
            print(f"{where}: the last line is cut short; the daemon mends that at its next start")
            continue
        if record is None or not line.endswith(b"\n"):
            wrong.append(f"{where}: cut short, or no record")
            continue
        if number == 1:  # each file says where it began, and so does each restart in it
            begins = record["seq"]
        if first is None:
            first = seq = record["seq"]
            digest = record["prev"] if seq > 1 else digest  # files before this one were not given
        else:
            seq += 1
        if record["seq"] != seq:
            wrong.append(f"{where}: record {seq} is missing, or moved: here stands {record['seq']}")
            seq = record["seq"]
        elif record["prev"] != digest:
            wrong.append(f"{where}: record {seq - 1} is not the one that {seq} was chained to")
        digest = hashlib.sha256(line).hexdigest()
        if missing.pop(seq, line) != line:
            wrong.append(f"{where}: record {seq} is not the checkpoint that was kept elsewhere")
        if record["type"] == "log":
            if log is not None and record["log"] != log:
                wrong.append(f"{where}: another log begins here")
            if record["first"] != begins:
                wrong.append(f"{where}: the file's first lines are missing")
            log = record["log"]
        elif number == 1:
            wrong.append(f"{where}: the file's first lines are missing")
        if record["type"] == "checkpoint" and keys:
            said = (record["log"], str(seq), record["prev"], f"{record['at']:.6f}")
            statement = "\n".join(("coatcheck audit checkpoint v1", *said, ""))
            named = [key for key in keys if hashlib.sha256(key).hexdigest()[:16] == record["key"]]
            signature = base64.b64decode(record["signature"])
            if record["log"] == log and named and signature_holds(named[0], statement.encode(), signature):
                signed = seq
            else:
                wrong.append(f"{where}: the checkpoint's signature does not hold")
    beyond = [each for each in missing if first is not None and each >= first]
    if beyond:
        wrong.append(f"the log ends at {seq}, or skips records; checkpoints vouch for {max(beyond)}")
    if keys and not signed:
        wrong.append("nothing is signed with the key that was given")
    return wrong, first, seq, signed


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", help="all files of the log, oldest first")
    parser.add_argument("--key", action="append", default=[], help="public key, kept elsewhere; repeatable")
    parser.add_argument("--checkpoints", help="the checkpoints that were kept elsewhere")
    given = parser.parse_args()
    keys = [public_key(path) for path in given.key]
    wrong, first, last, signed = check(given.files, keys, given.checkpoints)
    for each in wrong:
        print(each)
    through = f"signed through {signed}" if keys else "signatures not checked: no --key"
    print(f"{'BROKEN' if wrong else 'whole'}: records {first} to {last}, {through}")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, KeyError, TypeError, ValueError) as error:
        sys.stderr.write(f"not checked: {type(error).__name__}: {error}\n")
        sys.exit(2)
