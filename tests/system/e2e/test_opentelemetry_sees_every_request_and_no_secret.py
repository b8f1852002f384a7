"""A collector gets a span for each request and the alarms, and nothing that could be used anywhere."""

from pathlib import Path

from coatcheck.telemetry.otel.otlp import trace_id
from tests.daemon import running_daemon
from tests.known_secrets import known_secret
from tests.known_secrets import needles as known_needles
from tests.planes.raw_origin import running_origin
from tests.planes.wire import http_client
from tests.system.e2e.story import MODELS, bearer, policy
from tests.telemetry.collector import collecting, plain
from tests.upstreams import UpstreamTls

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
IN_QUERY = known_secret("a secret in a query")
IN_BODY = known_secret("a secret in a body")


async def test_a_collector_hears_everything_and_learns_nothing(
    place: Path, upstream_tls: UpstreamTls, real_keys: dict[str, str]
) -> None:
    """Allowed, refused, and alarming requests; queries, bodies, handles and keys are in none of the bytes.

    The sandbox's trace goes upstream as it came, and names no span of ours.
    """
    with collecting() as collector:
        async with (
            running_origin(upstream_tls) as upstream,
            running_daemon(
                place,
                policy(),
                {"memory:secret/openai#api_key": real_keys["openai"]},
                upstream_ca=upstream_tls.ca,
                connect_to={"api.openai.com:443": upstream.port},
                otel_endpoint=collector.url,
            ) as daemon,
        ):
            sandbox, thief = await daemon.sandbox(subject="agent-7"), await daemon.sandbox()
            async with http_client(daemon, sandbox) as http:
                traced = bearer(sandbox) | {"traceparent": TRACEPARENT, "tracestate": "evil=1"}
                answer = await http.get(f"{MODELS}?key={IN_QUERY}", headers=traced)
                assert answer.status_code == 200
                await http.post("https://api.openai.com/sink", headers=bearer(sandbox), content=IN_BODY)
                refused = await http.delete(f"{MODELS}/{sandbox.handles['openai']}", headers=bearer(sandbox))
            async with http_client(daemon, thief) as http:
                stolen = await http.get(MODELS, headers=bearer(sandbox))
            assert refused.status_code == 403 and stolen.headers["coatcheck-reason"] == "handle_stolen"
            rendered = daemon.metrics.render().decode()
    assert f"traceparent: {TRACEPARENT}\r\ntracestate: evil=1\r\n".encode() in upstream.visits[0].received
    assert "coatcheck_otel_items_total" in rendered

    spans = {plain(span.attributes)["coatcheck.request_id"]: span for span in collector.spans()}
    decisions = {record["request_id"]: record for record in daemon.decisions()}
    assert spans.keys() == decisions.keys() and len(spans) == 4
    for request_id, span in spans.items():
        found, record = plain(span.attributes), decisions[request_id]
        assert int.from_bytes(span.trace_id) == trace_id(request_id) and span.parent_span_id == b""
        assert span.trace_id.hex() not in TRACEPARENT and span.trace_state == "" and not span.links
        assert found["coatcheck.verdict"] == record["outcome"]
        assert found.get("coatcheck.reason") == record["reason"]
        assert found["coatcheck.session"] == record["session"] and found["coatcheck.tenant"] == "acme"
    allowed = next(s for s in spans.values() if plain(s.attributes).get("http.response.status_code") == 200)
    assert plain(allowed.attributes)["coatcheck.credentials"] == ["openai"]
    assert refused.json()["error"]["request_id"] in spans

    (alarm,) = [record for record in collector.records() if record.event_name == "coatcheck.alarm"]
    assert plain(alarm.attributes)["coatcheck.reason"] == "handle_stolen"
    everything = b"".join(body for _, _, body in collector.got)
    forbidden = {**known_needles(), TRACEPARENT.encode(): "the trace", b"evil=1": "its state"}
    for handle in (*sandbox.handles.values(), *thief.handles.values()):
        forbidden |= {handle.encode(): "a handle", handle.split(".")[-1].encode(): "a handle's signature"}
    assert {whose for needle, whose in forbidden.items() if needle in everything} == set()
