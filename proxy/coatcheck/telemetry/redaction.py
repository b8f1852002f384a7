"""Masks whatever looks like a credential in text that is about to be written.

The last line of defence behind "no secret and no handle in any event or message": it knows shapes,
not values, so it catches accidents, never an opponent. Every pattern is linear in its input.
"""

import re

MASK = "[masked]"

_HANDLE = re.compile(r"cch_[A-Za-z0-9_.\-]+")

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (_HANDLE, f"cch_{MASK}"),
    # A whole header line: what follows the name is the credential, whatever its scheme.
    (
        re.compile(
            r"(?i)((?:proxy-)?authorization|x-api-key|api-key|x-vault-token|set-cookie|cookie)"
            r"(['\"]{0,1}[ ]{0,2}[:=,][ ]{0,2})[^\r\n]+"
        ),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)[ ]+[A-Za-z0-9+/_\-.=~]{6,}"), rf"\1 {MASK}"),
    # Vault tokens, and the prefixes that the common APIs give their keys.
    (re.compile(r"\b(hv[sbr]\.|s\.|sk-|gh[opsu]_|github_pat_|xox[abp]-|AKIA)[\w\-]{16,}"), rf"\1{MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-.]+"), MASK),
    (re.compile(r"(://)[^/\s@'\"]{1,256}@"), rf"\1{MASK}@"),
    # Queries carry credentials (OpenShell #2531).
    (re.compile(r"(https?://[^\s?'\"<>]{1,2048}\?)[^\s'\"<>]+"), rf"\1{MASK}"),
)  # fmt: skip

_BYTES_LITERAL = re.compile(r"""b'(?:[^'\\]|\\.)*(?:'|$)|b"(?:[^"\\]|\\.)*(?:"|$)""", re.DOTALL)


def mask_handles(text: str) -> str:
    """`text` with every `cch_…` cut down to its prefix."""
    return _HANDLE.sub(f"cch_{MASK}", text)


def mask(text: str) -> str:
    """`text` with everything that has a credential's shape masked."""
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text


def mask_bytes_literals(text: str) -> str:
    """`text` without Python bytes literals: mitmproxy puts raw traffic into messages in that form."""
    return _BYTES_LITERAL.sub("b'[bytes left out]'", text)


def printable(text: str) -> str:
    """`text` on one line: everything that is not printable (controls, bidi marks, separators) escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
