"""Whether a handle's text is genuine, fast: asked by planes for every handle, without a lock."""

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.handle import MAX_CHARS, PREFIX, Claims, verify
from coatcheck.decision.policy import Shape
from coatcheck.state.claims_cache import MAX_GENUINE, MAX_REFUSED, ClaimsCache, digest_of
from coatcheck.state.issued import IssuedHandles
from coatcheck.state.signing_keys import SigningKeys

_UNKNOWN = Deny(Reason.HANDLE_UNKNOWN, "not a handle that we issued")


class GenuineHandles:
    """Signed handles by their signature, checked once and then known by digest; references by digest.

    Cached answers need no eviction when our own keys change: a key is dropped after its last handle expired,
    and a key that a refused handle named never comes into being later. Keys of other daemons do, and then
    refusals are forgotten. A handle that outlives its key, because a fork of its sandbox may hold it, is
    known by its digest.
    """

    def __init__(self, keys: SigningKeys, issued: IssuedHandles) -> None:
        self.keys = keys
        self._issued = issued
        self._genuine = ClaimsCache(MAX_GENUINE)
        self._refused = ClaimsCache(MAX_REFUSED)

    def claims_of(self, text: str) -> Claims | Deny:
        """What the bare handle `text` says if it is genuine. Whether it counts is `handle.judge`'s to say."""
        if not text.startswith(PREFIX):
            return self._issued.references.get(digest_of(text), _UNKNOWN)
        if len(text) > MAX_CHARS:
            return verify(text, self.keys.current)
        digest = digest_of(text)
        refused = self._refused  # before the keys: what they refuse is not kept after they were changed
        known = self._genuine.get(digest) or refused.get(digest)
        if known is None:
            known = verify(text, self.keys.current)
            if isinstance(known, Deny) and not known.alarm:  # its key may be gone before its last reader is
                known = self._issued.signed.get(digest, known)
            (refused if isinstance(known, Deny) else self._genuine).put(digest, known)
        return known

    def forget_refusals(self) -> None:
        """Keys or handles came from another daemon: what was no handle of ours a moment ago may be one."""
        self._refused = ClaimsCache(MAX_REFUSED)

    def is_reference(self, text: str) -> bool:
        """Whether `text` is a reference handle that we issued: the `known` of `search.find`."""
        return digest_of(text) in self._issued.references

    @property
    def references(self) -> tuple[Shape, ...]:
        """The shapes of all references: the `references` of `search.find`."""
        return self._issued.shapes
