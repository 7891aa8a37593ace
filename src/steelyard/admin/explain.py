"""Where would a request go, and why: the way of the data path, up to the decision, with nothing reserved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from steelyard.admin.access import Denied
from steelyard.admin.answers import ExplainAnswer, OptionAnswer
from steelyard.admin.inspection import clipped, finite, footprint_answer
from steelyard.core.administration import path_refusal
from steelyard.core.refusal import STATUSES, Refusal
from steelyard.core.work import Work
from steelyard.dialects import MalformedBody, Operation, recognise
from steelyard.proxy.http1 import RequestHead, RequestReader
from steelyard.proxy.local import local_answer
from steelyard.proxy.request_body import RequestBody

if TYPE_CHECKING:
    from steelyard.proxy.gateway import Gateway

FRAMING = frozenset({"content-length", "transfer-encoding"})
"""Headers that follow from the body; what the description says of them does not count."""


class ExplainRequest(BaseModel):
    """The request that is to be explained."""

    model_config = ConfigDict(extra="forbid")

    method: str = Field("POST", pattern=r"^[A-Z]+$", max_length=32)
    path: str = Field(
        pattern=r"^/[!-~]*$", max_length=8192, description="With its query, if any: `/v1/chat/completions`."
    )
    headers: dict[str, str] = Field({}, description="Its headers. Those that frame the body are made here.")
    body: dict[str, Any] | list[Any] | str | None = Field(
        None, description="Its body: JSON as it is, or a text that is taken as it is."
    )
    tenant: str | None = Field(
        None, description="Explain it as a request of this tenant; default: the tenant whose API key is in the headers."
    )


def explain(gateway: Gateway, asked: ExplainRequest) -> ExplainAnswer:
    """The explanation. Raises Denied (400) when what is described is no request that can be read."""
    body = body_bytes(asked.body)
    head = request_head(gateway, asked, body)
    operation = recognise(head.method, head.path)
    if local_answer(gateway, head) is not None:
        return _answer(operation, None, outcome="gateway", reason=f"the gateway answers {head.path} itself")
    tenant = gateway.tenant(head.read) if asked.tenant is None else asked.tenant
    if isinstance(tenant, Refusal):
        answer = _refused(operation, None, tenant)
        answer.reason += "; here, write the key under headers, or only the tenant that it belongs to"
        return answer
    received = RequestBody(head, operation, gateway)
    content_type = head.read.get(b"content-type", b"")
    now = gateway.clock()
    try:
        received.prepare(content_type)
        too_much = received.add(body, content_type) if body else None
        if too_much is not None:
            return _refused(operation, None, too_much)
        work = received.read(content_type, head.target)
        gateway.complete(work, head.read, tenant, now)
    except MalformedBody as error:
        raise Denied(400, "malformed_request", f"in the request that is described: {error}") from None
    finally:
        received.drop()
    route = gateway.route(head, work)
    if route is None:
        return _refused(operation, work, Refusal("not_found", f"no route for {head.path}"))
    refusal = path_refusal(head.method, head.path, operation.name != "other" or route.match.names_path)
    if refusal is not None:
        return _refused(operation, work, refusal)
    found = gateway.balancer.explain(work, route, now)
    answer = _answer(operation, work, outcome=found.outcome, reason=found.reason)
    answer.node = found.node.name if found.node is not None else None
    answer.route, answer.policy = route.name, route.policy.name
    answer.footprint = footprint_answer(work.footprint or route.footprint(work))
    answer.options = [
        OptionAnswer(option.node.name, option.node.state.value, option.objection, finite(option.score))
        for option in found.options
    ]
    return answer


def body_bytes(body: object) -> bytes:
    """The bytes that a client would send."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode("utf-8", "replace")
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def request_head(gateway: Gateway, asked: ExplainRequest, body: bytes) -> RequestHead:
    """The head of the request as the data path reads it. Raises Denied (400)."""
    lines = [f"{asked.method} {asked.path} HTTP/1.1"]
    names = set()
    for name, value in asked.headers.items():
        if "\r" in f"{name}{value}" or "\n" in f"{name}{value}":
            raise Denied(400, "malformed_request", f"headers: {name!r} holds a line break")
        if name.lower() not in FRAMING:
            names.add(name.lower())
            lines.append(f"{name}: {value}")
    if "host" not in names:
        lines.append("Host: steelyard")
    if body:
        lines.append(f"Content-Length: {len(body)}")
        if not isinstance(asked.body, str) and "content-type" not in names:
            lines.append("Content-Type: application/json")
    try:
        text = "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        message = f"headers: {wrong!r} cannot stand in a header, only characters of ISO 8859-1 can"
        raise Denied(400, "malformed_request", message) from None
    reader = RequestReader(gateway.table, gateway.settings.limits.headers)
    for event in reader.feed(text):
        if isinstance(event, RequestHead):
            return event
    problem = reader.error or "it is not complete"
    raise Denied(400, "malformed_request", f"method, path and headers make no HTTP request: {problem}")


def _answer(operation: Operation, work: Work | None, *, outcome: str, reason: str) -> ExplainAnswer:
    return ExplainAnswer(
        outcome=outcome,
        status=STATUSES.get(outcome),
        reason=clipped(reason),
        node=None,
        route=None,
        policy=None,
        dialect=operation.dialect,
        operation=operation.name,
        model=clipped(work.model) if work is not None else None,
        asked_model=clipped(work.asked_model) if work is not None else None,
        version=clipped(work.version) if work is not None else None,
        stream=work.stream if work is not None else False,
        has_session=work is not None and work.session is not None,
        footprint=None,
        options=[],
    )


def _refused(operation: Operation, work: Work | None, refusal: Refusal) -> ExplainAnswer:
    return _answer(operation, work, outcome=refusal.code, reason=refusal.message)
