"""One more way to inject, as somebody would add it: `test_registry` puts this file into injectors/."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field

from coatcheck.decision.denial import Deny, Reason
from coatcheck.decision.injection import Found, Injector, Location, Outgoing, only_value
from coatcheck.decision.message import Edits, RequestHead
from coatcheck.injectors.spelling import Strict, Token, Way


@dataclass(frozen=True, slots=True)
class CouponInjection(Injector):
    """The header `x-coupon` carries `shop:handle`."""

    key: ClassVar[str] = "coupon"
    shop: str

    def stands_at(self, found: Found, glued: str) -> bool:
        there = found.location is Location.HEADER and found.name == "x-coupon"
        return there and found.is_all_but(f"{self.shop}:{glued}")

    def shown(self, head: RequestHead, value: str) -> RequestHead:
        return replace(head, headers=(*head.headers, ("x-coupon", f"{self.shop}:{value}")))

    @property
    def spot(self) -> tuple[str, str]:
        return "header", "x-coupon"

    def edit(self, request: Outgoing, handle: str | None, secret: str) -> Edits | Deny:
        value = only_value(request.head, "x-coupon")
        if isinstance(value, Deny):
            return value
        if value != f"{self.shop}:{handle}":
            return Deny(Reason.HANDLE_MISPLACED, "header x-coupon is not exactly shop and handle")
        return Edits((("x-coupon", f"{self.shop}:{secret}"),))

    def unusable(self, secret: str, scrub: bool) -> Deny | None:
        number = secret.isdigit() and len(secret) >= 16
        return None if number else Deny(Reason.SECRET_UNUSABLE, "a coupon is a long number")

    @property
    def place(self) -> str:
        return "the coupon"

    def terms(self) -> Mapping[str, str]:
        return {"the coupon's shop": self.shop}

    def environment(self, handle: str) -> Mapping[str, str]:
        return {"COUPON_OF_THE_SHOP": f"{self.shop}:{handle}"}


class CouponSpec(Strict):
    shop: Token = Field(description="Where the coupon counts.")


def _build(values: Mapping[str, Any]) -> CouponInjection:
    spec: CouponSpec = values["coupon"]
    return CouponInjection(spec.shop)


WAY = Way(
    keys={"coupon": (CouponSpec, "A coupon of one shop.")},
    build=_build,
    parts={"coupon": CouponSpec},
    examples={"coupon": "coupon: {shop: corner}"},
    snippets=({"label": "a coupon", "description": "x-coupon", "body": {"coupon": {"shop": "${1:corner}"}}},),
)
