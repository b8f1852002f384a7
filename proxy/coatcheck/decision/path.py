"""One reading of a request target (I7). What two parsers could read differently is refused.

Facts behind the rules:
- Dot segments, raw or as `%2e`, and `%2f`, `%5c`, `\\` are resolved by some servers before routing and
  by others after; Tomcat and Spring drop `;params` first, so that `/v1/..;/admin` climbs. Windows drops
  spaces at a name's end, so that `..%20` climbs, too.
- `%63` is `c` to most servers and three characters to some (RFC 3986 6.2.2.2 calls them equivalent,
  6.2.2 leaves it to each reader). Clients have no reason to escape letters, digits, `-`, `.` or `_`,
  so these are refused. `~` is the exception: form encoders such as Java's write `%7E`.
- `%25` before two hex digits is decoded twice by some front ends; overlong UTF-8 (`%c0%ae`) and
  characters that NFKC turns into a slash or a dot segment (U+FF0F, U+2025) become separators in others.
- `//` and `;` inside a path are legitimate (S3 keys, matrix parameters) but shift segments for some
  readers. They pass where no rule looks at paths; where one does, `policy.match` refuses them: see
  `ambiguous`.
- `%2F` is a slash to some servers and part of a name to others (npm's `/@scope%2fname`, GitLab's projects).
  It passes only where a rule declares it (`policy.PathPattern`), between two names that no server resolves.
- Bytes above 0x7E never belong in a target; 0x85 and 0xA0 are white space to readers that split the
  request line as text.

A query is free apart from such bytes, `#` and its length. No detail repeats the target: it may
carry a handle.
"""

import unicodedata
from urllib.parse import unquote, unquote_to_bytes

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.outside import OutsideText

MAX_TARGET = 8192
"""Characters. nginx, Apache and most CDNs refuse longer request lines too."""

_LONGEST_SUFFIX = 8
"""Characters of a format's name: `.json`, `.msgpack`."""

_HEX = frozenset("0123456789abcdefABCDEF")
_NEEDLESS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_PLAIN = frozenset(
    pair
    for code in range(0x20, 0x100)
    if code != 0x7F and code not in b"./\\%" and code not in _NEEDLESS
    for pair in (f"{code:02x}", f"{code:02X}")
)
"""Escapes that need no second look: 2,700 of them fit into one target, and each costs a set look-up."""


ENCODED_SLASH = "%2F"
"""How an escaped slash is spelt in a canonical path."""


def check_target(target: OutsideText, *, slashes: bool = False) -> Deny | None:
    """None when every reader agrees on what the origin-form `target` names, else PATH_FORM_REFUSED.
    `slashes`: escaped ones pass, because what follows looks for a rule that declares them."""
    problem = _problem(target, slashes)
    return None if problem is None else Deny(Reason.PATH_FORM_REFUSED, problem)


def canonical_path(path: OutsideText) -> str:
    """`path` as rules compare it: escapes in upper-case hex, `%7E` as `~`.

    Meant for paths that `check_target` accepts; equal results then name the same resource.
    """
    if "%" not in path:
        return path
    first, *rest = path.split("%")
    return "%".join([first, *(part[:2].upper() + part[2:] for part in rest)]).replace("%7E", "~")


def ambiguous(path: OutsideText) -> bool:
    """True when readers that agree on the path's text may still disagree on its segments."""
    return ";" in path or "//" in path or ("%" in path and ("%3B" in path or "%3b" in path))


def spellings(path: OutsideText) -> tuple[list[str], ...]:
    """The segments of a canonical `path` as lenient servers compare them: decoded, in lower case, without a
    slash at the end, and without the dots and blanks at a name's end that Windows drops. A second reading
    where frameworks take the last segment's suffix for a format (`/merge.json` is `/merge` in Rails)."""
    text = unquote(path) if "%" in path else path
    text = text.lower() if text.isascii() else _folded(text)
    if "?" in text or "#" in text:  # escaped: a front end that decodes them ends the path there
        end = min(at for sign in "?#" if (at := text.find(sign)) >= 0)
        return (*_spellings(text), *_spellings(text[:end]))
    return _spellings(text)


def _folded(text: str) -> str:
    """Compared as Unicode's NFKC_Casefold does, without what is not seen: HFS+ ignores it (CVE-2014-9390)."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(sign for sign in folded if unicodedata.category(sign) != "Cf")


def _spellings(text: str) -> tuple[list[str], ...]:
    parts = text.split("/")
    del parts[0]
    while parts and not parts[-1]:
        parts.pop()
    if "." not in text and " " not in text:
        return (parts,)
    parts = [part.rstrip(" .") or part for part in parts]
    stem, dot, suffix = parts[-1].rpartition(".") if parts else ("", "", "")
    if stem and dot and len(suffix) <= _LONGEST_SUFFIX and suffix.isalnum():
        return parts, [*parts[:-1], stem]
    return (parts,)


def _problem(target: str, slashes: bool) -> str | None:
    if len(target) > MAX_TARGET:
        return f"the target is longer than {MAX_TARGET} characters"
    # isprintable on ASCII is exactly 0x20 to 0x7E.
    if not (target.isascii() and target.isprintable()) or " " in target:
        return "a control character, a space or a byte outside ASCII in the target"
    if "#" in target:
        return "a fragment in the target"
    path = target.partition("?")[0]
    if not path.startswith("/"):
        return "the target does not begin with a slash"
    if path.startswith("//"):
        return "the path begins with two slashes, which may read as a host"
    if "\\" in path:
        return "a backslash in the path"
    if "/." not in path and ";" not in path and "%" not in path:
        return None
    if slashes and "%2" in path:
        path = canonical_path(path)
        if any("" in segment.split(ENCODED_SLASH) for segment in path.split("/") if ENCODED_SLASH in segment):
            return "an escaped slash at the beginning or end of a segment, or beside another"
        path = path.replace(ENCODED_SLASH, "/")
    return _segment_problem(path) or (_escape_problem(path) if "%" in path else None)


def _segment_problem(path: str) -> str | None:
    for segment in path.split("/"):
        stem, parameter, _ = segment.partition(";")
        if stem.replace("%20", " ").strip(" ") in {".", ".."}:
            return "a dot segment in the path"
        if parameter and not stem:
            return "a path parameter without a segment"
    return None


def _escape_problem(path: str) -> str | None:
    for part in path.split("%")[1:]:
        pair = part[:2]
        if pair in _PLAIN:
            continue
        if len(pair) != 2 or not _HEX.issuperset(pair):
            return "an invalid percent escape in the path"
        code = int(pair, 16)
        if code < 0x20 or code == 0x7F:
            return "an escaped control character in the path"
        if code in b"./\\":
            return "an escaped dot, slash or backslash in the path"
        if code in _NEEDLESS:
            return "an escaped letter, digit, hyphen or underscore in the path"
        if code == 0x25 and len(part) > 3 and _HEX.issuperset(part[2:4]):
            return "a percent escape that is escaped again in the path"
    return _unicode_problem(path)


def _unicode_problem(path: str) -> str | None:
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return "percent escapes in the path that are not UTF-8"
    if text.isascii():
        return None
    folded = unicodedata.normalize("NFKC", text)
    if any(folded.count(sign) != text.count(sign) for sign in "/\\%;?#"):
        return "a character in the path that some readers take for a separator"
    return _segment_problem(folded)
