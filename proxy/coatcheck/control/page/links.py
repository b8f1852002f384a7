"""/v1/page-links: a link that logs its caller in on the page, once. For `coatcheck page`."""

from http import HTTPStatus

from pydantic import Field

from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.models import ResponseModel
from coatcheck.control.operation import Answer, Ask, Operation
from coatcheck.control.page.browser import PREFIX
from coatcheck.control.page.logins import LINK_SECONDS
from coatcheck.control.problem import ControlProblem, Refusal
from coatcheck.control.resources.sessions import caller_of


class PageLink(ResponseModel):
    url: str = Field(description="Where the page is; behind `#` the code, which no server and no log sees.")
    page: str = Field(description="The same without the code.")
    expires_in: float = Field(description="Seconds.")


async def link(context: Context, ask: Ask) -> Answer:
    if context.page_origin is None:
        raise ControlProblem(
            Refusal.NO_PAGE,
            "the page is not served, because the control API is on its Unix socket only",
            "Set COATCHECK_CONTROL_PORT, say to 8750, and start the daemon again.",
        )
    page = f"{context.page_origin}{PREFIX}/"
    code = context.logins.link(caller_of(ask))
    return HTTPStatus.CREATED, PageLink(url=f"{page}#login={code}", page=page, expires_in=LINK_SECONDS)


OPERATIONS = (
    Operation(
        "link_page",
        "POST",
        "/v1/page-links",
        Action.SEE,
        "Create a link that logs the caller, not a launcher, in to the page, once, within two minutes",
        link,
        PageLink,
        status=HTTPStatus.CREATED,
        reasons=frozenset({Refusal.NO_PAGE, Refusal.FORBIDDEN}),
    ),
)
