"""A handle as the value of one `name=value` pair, in a query or a form body."""

from urllib.parse import quote, unquote_plus

from coatcheck.decision.denial import Deny, Reason


def substitute_pair(pairs: str, name: str, handle: str | None, secret: str) -> str | Deny:
    """`a=1&name=handle` with the secret, percent-encoded, as the value of `name`; the rest to the byte.

    With `handle` None the pair is replaced whatever it holds, or added.
    """
    pieces = pairs.split("&") if pairs else []
    found = [at for at, piece in enumerate(pieces) if unquote_plus(piece.partition("=")[0]) == name]
    if len(found) > 1:
        return Deny(Reason.HANDLE_MISPLACED, f"parameter {name} stands {len(found)} times")
    encoded = quote(secret, safe="")
    if not found:
        if handle is not None:
            return Deny(Reason.HANDLE_MISSING, f"no parameter {name}")
        return "&".join([*pieces, f"{quote(name, safe='')}={encoded}"])
    sent, _, value = pieces[found[0]].partition("=")
    if handle is not None and unquote_plus(value) != handle:
        return Deny(Reason.HANDLE_MISPLACED, f"parameter {name} is not exactly the handle")
    pieces[found[0]] = f"{sent}={encoded}"
    return "&".join(pieces)
