"""What comes back for one request: every secret that is known for its tenant is taken out (I1)."""

from collections.abc import Callable, Iterator
from typing import Final

from coatcheck.decision.blocks import Blocks
from coatcheck.decision.body_scrubber import BodyScrubber
from coatcheck.decision.content_coding import CodingRefused, Decoder
from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.message import Headers, RequestHead, ResponseHead
from coatcheck.decision.ranges import Cutting
from coatcheck.decision.response import (
    Framing,
    ResponsePlan,
    message_coding,
    plan_response,
    plan_trailers,
)
from coatcheck.decision.scrub import Patterns, Run, Scrubber, scrub_bytes
from coatcheck.decision.session import Session
from coatcheck.request.known_secrets import KnownSecrets

NOTHING = Patterns(())
"""What answers of a tenant without secrets are searched for: they are decoded, and so could be."""

MOST_CODED: Final = 16
"""Coded bytes to one decoded one. An encoder that flushes after each byte writes a dozen."""
SURPLUS: Final = 1_048_576
"""How many more may have come: a coded body that decodes to nothing must end, too."""


def _anything(count: int) -> None:
    """No limit."""


class Answer:
    """Feed it an answer's head, its body's chunks and its end, in order. `hits` counts what was masked,
    `take_runs` says what."""

    def __init__(
        self,
        head: RequestHead,
        session: Session,
        known: KnownSecrets | None,
        minted: Patterns | None = None,
    ) -> None:
        """`known` None: the rule says that answers are not searched. `minted`: what was made for this request
        alone, such as a signature, and is looked for until its answer ends."""
        self._head = head
        self._known = known
        self._session = session
        self._minted = minted if known is not None else None
        self._common: Patterns | None = None
        self._own: Patterns | None = None
        """The session's and this request's own together, as long as the session's are `_common`."""
        self._patterns: Patterns | None = None
        self._scrubber: BodyScrubber | None = None
        self.messages: Scrubber | None = None
        """Of a WebSocket's messages, if the answer was a switch to one."""
        self._decoder: Decoder | None = None
        self._blocks: Blocks | None = None
        self._surplus = 0
        self._cutting: Cutting | None = None
        self._bodiless = False
        self._hits = 0
        self._runs: list[Run] = []

    @property
    def hits(self) -> int:
        return self._hits + sum(each.hits for each in self._scrubbers)

    @property
    def _scrubbers(self) -> tuple[BodyScrubber | Scrubber, ...]:
        return tuple(each for each in (self._scrubber, self.messages) if each is not None)

    def take_runs(self) -> tuple[Run, ...]:
        """What was masked since the last call, in the head, the body, messages and trailers."""
        runs = (*self._runs, *(run for each in self._scrubbers for run in each.take_runs()))
        self._runs.clear()
        return runs

    @property
    def going_on(self) -> Run | None:
        """A part of a secret at the end of what was masked so far, which `take_runs` tells later."""
        return next((run for each in self._scrubbers if (run := each.going_on) is not None), None)

    def break_off(self) -> None:
        """It ends here, perhaps before its end: no part of a secret goes on."""
        for each in self._scrubbers:
            each.break_off()

    @property
    def patterns(self) -> Patterns | None:
        """What must not come back, as of now: a secret may have been rotated, or a policy changed."""
        common = self._known.patterns(self._session) if self._known is not None else None
        if self._minted is None or common is None:
            return common or self._minted
        if self._own is None or common is not self._common:
            self._common, self._own = common, common.beside(self._minted)
        return self._own

    def count(self, runs: tuple[Run, ...]) -> None:
        """Masked in the head, in trailers or in control frames, all of which are short."""
        self._hits += len(runs)
        self._runs += runs

    def begin(
        self,
        response: ResponseHead,
        *,
        authenticated: bool,
        keep_set_cookie: bool,
        websocket: bool,
        end_stream: bool,
    ) -> ResponsePlan | Deny:
        """What must happen to the answer."""
        self._patterns = self.patterns
        plan = plan_response(
            self._head,
            response,
            authenticated=authenticated,
            patterns=None if self._known is None else self._patterns or NOTHING,
            keep_set_cookie=keep_set_cookie,
            websocket=websocket,
        )
        if isinstance(plan, Deny):
            return plan
        self.count(plan.runs)
        self._cutting = Cutting(plan.part) if plan.part is not None else None
        self._bodiless = plan.framing is Framing.NONE and response.status != 101 and plan.part is None
        if plan.scrub_body and not end_stream:
            media = response.get("content-type") or ""
            self._scrubber = BodyScrubber(
                self._patterns or NOTHING, content_type=media, message_coding=message_coding(response) or ()
            )
            if plan.codings:
                self._decoder, self._blocks = Decoder(plan.codings), Blocks(media)
        return plan

    @property
    def over(self) -> bool:
        """Whether nothing more of the body is wanted: what was asked for of it has come."""
        return self._cutting is not None and self._cutting.over

    def feed(self, chunk: bytes, received: Callable[[int], Deny | None] = _anything) -> list[bytes] | Deny:
        """One chunk of body, as the sandbox may see it. `received` counts its bytes, decoded, and may end it:
        a limit that counted compressed ones would tell how well they compress."""
        if self._bodiless and chunk:
            return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, "a body where there is none")
        late = self._look_for_new_secrets()
        if late is not None:
            return late
        if self._scrubber is None:
            return received(len(chunk)) or [chunk]
        out: list[bytes] = []
        try:
            for piece in self._decoded(chunk):
                refused = received(len(piece))
                if refused is not None:
                    return refused
                out += self._scrubber.feed(piece)
        except CodingRefused as coding:
            return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(coding))
        return self._as_asked(out)

    def finish(self) -> list[bytes] | Deny:
        """The rest, once the body ended cleanly."""
        if self._scrubber is None:
            return []
        try:
            if self._decoder is not None:
                self._decoder.finish()
            rest = self._as_asked(self._scrubber.finish())
        except CodingRefused as coding:
            return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, str(coding))
        return rest + self._blocks.rest() if self._blocks is not None else rest

    def _decoded(self, chunk: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            yield chunk
            return
        self._surplus += len(chunk)
        for piece in self._decoder.decode(chunk):
            self._surplus -= MOST_CODED * len(piece)
            yield piece
        self._surplus = max(0, self._surplus)
        if self._surplus > SURPLUS:
            raise CodingRefused("the body is much longer than what it decodes to")

    def _as_asked(self, pieces: list[bytes]) -> list[bytes]:
        """The part that was asked for, in pieces that say nothing of the coding."""
        if self._cutting is not None:
            pieces = [part for piece in pieces if (part := self._cutting.cut(piece))]
        if self._blocks is None:
            return pieces
        return [block for piece in pieces for block in self._blocks.put(piece)]

    def _look_for_new_secrets(self) -> Deny | None:
        """A stream that was open before the tenant had a secret must not show it either (an upstream may show
        one client's requests to another)."""
        patterns = self.patterns
        if patterns is self._patterns or patterns is None:
            return None
        self._patterns = patterns
        if self._scrubber is not None:
            self._scrubber.look_for(patterns)
            return None
        detail = "an answer that cannot be searched, from before the tenant had a secret"
        return Deny(Reason.UPSTREAM_RESPONSE_REFUSED, detail)

    def trailers(self, trailers: Headers) -> Headers | Deny:
        """gRPC's status travels in trailers: they lose secrets as headers do."""
        planned = plan_trailers(trailers, self.patterns)
        if isinstance(planned, Deny):
            return planned
        clean, runs = planned
        self.count(runs)
        return clean

    def whole(self, payload: bytes) -> bytes:
        """A piece that nothing follows, such as a ping's payload."""
        patterns = self.patterns
        if patterns is None:
            return payload
        clean, runs = scrub_bytes(patterns, payload)
        self.count(runs)
        return clean
