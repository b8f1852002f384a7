"""/healthz, /readyz and /metrics.

The first two need no caller over TCP, because what asks (a kubelet, a load balancer) holds no token, and
they tell nothing about anybody. /metrics counts requests by policy and reason, so it is for callers.
"""

from http import HTTPStatus

from coatcheck.control import models
from coatcheck.control.bridge import DEAD_SECONDS, STALLED_SECONDS
from coatcheck.control.caller import Action
from coatcheck.control.context import Context
from coatcheck.control.operation import Answer, Ask, Operation, Text


async def alive(context: Context, ask: Ask) -> Answer:
    age = context.bridge.age
    health = models.Health(
        status="stalled" if age > STALLED_SECONDS else "ok", plane_age_seconds=round(age, 3)
    )
    # A short stall must not get the daemon killed; a long one must.
    return HTTPStatus.SERVICE_UNAVAILABLE if age > DEAD_SECONDS else HTTPStatus.OK, health


async def ready(context: Context, ask: Ask) -> Answer:
    missing = [*context.backend.missing()]
    if context.bridge.age > STALLED_SECONDS:
        missing.append("plane")
    readiness = models.Readiness(ready=not missing, missing=missing)
    return HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK, readiness


async def metrics(context: Context, ask: Ask) -> Answer:
    return Text(*await context.read(context.backend.render_metrics))


OPERATIONS = (
    Operation(
        "alive",
        "GET",
        "/healthz",
        None,
        "Liveness: whether the daemon works, its plane included",
        alive,
        models.Health,
        or_status=HTTPStatus.SERVICE_UNAVAILABLE,
    ),
    Operation(
        "ready",
        "GET",
        "/readyz",
        None,
        "Readiness: whether the daemon can serve, and what is missing",
        ready,
        models.Readiness,
        or_status=HTTPStatus.SERVICE_UNAVAILABLE,
    ),
    Operation(
        "metrics",
        "GET",
        "/metrics",
        Action.MEASURE,
        "Metrics in Prometheus' text format, for callers of all tenants",
        metrics,
        None,
        content_type="text/plain",
    ),
)
