"""The admin API keeps what its OpenAPI document promises, whatever is asked (schemathesis, in this process)."""

from __future__ import annotations

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from steelyard.admin.access import Access
from steelyard.admin.api import create_app
from steelyard.core.node import Event
from steelyard.core.work import Work

from .building import admit, line_up, still_service

# A service with something of everything, so that the answers are not empty.
SERVICE = still_service(
    nodes=[
        {"name": "n0", "url": "http://a:1", "engine": "vllm", "models": ["llama"], "max_in_flight": 1},
        {"name": "n1", "url": "http://a:2", "gpu_memory": "24GB", "version": "v1"},
    ],
    routes=[{"name": "r", "match": {"path": "/*"}, "footprints": [{"when": {"width": 512}, "memory": "8GB"}]}],
)
SERVICE.gateway.node_event(SERVICE.gateway.balancer.fleet.nodes["n1"], Event.DRAIN)
admit(SERVICE)
admit(SERVICE, Work("openai", "chat", "nope"))
line_up(SERVICE)

SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", create_app(SERVICE, Access(hosts=frozenset({"testserver"}))))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
"""Not among them: that valid data is always accepted. What is described to /api/explain may be no request at all, which
no schema can tell."""


@SCHEMA.parametrize()
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
def test_what_is_promised_is_kept(case: schemathesis.Case) -> None:
    case.call_and_validate(checks=CHECKS)
