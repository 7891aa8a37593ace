"""The admin API: what is asked, and where its answer comes from."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import structlog
from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import steelyard
from steelyard.admin import answers
from steelyard.admin.access import Access, Denied, Guard, error_body
from steelyard.admin.explain import ExplainRequest, explain
from steelyard.admin.inspection import (
    all_nodes,
    decisions,
    node_answer,
    queue_answer,
    readiness,
    route_answer,
)
from steelyard.admin.metrics import CONTENT_TYPE, render
from steelyard.admin.snapshot import take
from steelyard.core.balancer import DECISIONS
from steelyard.core.node import Event, ImpossibleTransition, Node

if TYPE_CHECKING:
    from steelyard.admin.running import Running

NodeName = Annotated[str, Path(description="The node's name.")]

DECISIONS_SHOWN = 100
ERRORS = {
    400: "What was asked makes no sense.",
    401: "The admin token is missing or wrong.",
    403: "Host or Origin is not right.",
    404: "There is no such node.",
    409: "The node's state does not allow it.",
    413: "The body is too large.",
    422: "A parameter or a field is wrong.",
}
PHRASES = {404: "not_found", 405: "method_not_allowed"}
_ANSWERS = [kind for kind in vars(answers).values() if getattr(kind, "__module__", "") == answers.__name__]
_SCHEMAS = {kind: f"#/components/schemas/{kind.__name__}" for kind in _ANSWERS}


def create_app(service: Running, access: Access | None = None) -> FastAPI:
    """The API of a service. `access`: default is what the environment and the configured address say."""
    if access is None:
        access = Access.of(os.environ, service.config.admin.host)
    app = FastAPI(
        title="Steelyard admin",
        version=steelyard.__version__,
        # The interactive pages load their scripts from the network.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _probes(app, service)
    _views(app, service)
    _steering(app, service)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Guard, access=access)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _probes(app: FastAPI, service: Running) -> None:
    @app.get("/health", responses=_documented(answers.HealthAnswer))
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """200 while the process lives."""
        return _json(answers.HealthAnswer("ok"))

    @app.get("/ready", responses={**_documented(answers.ReadyAnswer), 503: _content(answers.ReadyAnswer, "Not ready.")})
    @app.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """200 when requests should be sent here, else 503."""
        answer = readiness(service.gateway)
        return _json(answer, 200 if answer.ready else 503)

    @app.get("/metrics", responses={200: {"description": "Prometheus text.", "content": {"text/plain": {}}}})
    @app.head("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """All metrics, in the text format of Prometheus."""
        text = await render(await take(service))
        return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _views(app: FastAPI, service: Running) -> None:
    @app.get("/api/version", responses=_documented(answers.VersionAnswer, 401, 403))
    async def version() -> Response:
        """What runs here."""
        return _json(answers.VersionAnswer(steelyard.__version__, platform.python_version(), service.started_at))

    @app.get("/api/nodes", responses=_documented(answers.NodesAnswer, 401, 403))
    async def nodes() -> Response:
        """All nodes, with what is reserved and what was observed."""
        return _json(answers.NodesAnswer([node_answer(service, node) for node in all_nodes(service.gateway)]))

    @app.get("/api/routes", responses=_documented(answers.RoutesAnswer, 401, 403))
    async def routes() -> Response:
        """The routes, as they are in force."""
        gateway = service.gateway
        return _json(answers.RoutesAnswer([route_answer(gateway, route) for route in gateway.settings.routes]))

    @app.get("/api/queue", responses=_documented(answers.QueueAnswer, 401, 403))
    async def queue() -> Response:
        """Who waits, in which lines, and for how long."""
        return _json(queue_answer(service.gateway))

    @app.get("/api/decisions", responses=_documented(answers.DecisionsAnswer, 401, 403, 422))
    async def recent_decisions(
        limit: Annotated[int, Query(ge=1, le=DECISIONS, description="How many at most.")] = DECISIONS_SHOWN,
        node: Annotated[str | None, Query(description="Only placements on this node.")] = None,
        model: Annotated[str | None, Query(description="Only requests for this model.")] = None,
    ) -> Response:
        """The latest placements and refusals, newest first, with their reasons."""
        return _json(answers.DecisionsAnswer(decisions(service.gateway, limit, node, model)))


def _steering(app: FastAPI, service: Running) -> None:
    log = structlog.get_logger("steelyard.admin")

    def happen(name: str, event: Event) -> Response:
        node = _named(service, name)
        try:
            changed = service.gateway.node_event(node, event)
        except ImpossibleTransition as error:
            raise Denied(409, "impossible_transition", str(error)) from None
        log.info(event.value, node=name, state=node.state.value, changed=changed)
        return _json(answers.TransitionAnswer(changed, node_answer(service, node)))

    documented = _documented(answers.TransitionAnswer, 401, 403, 404, 409, 413, 422)

    @app.post("/api/nodes/{name:path}/drain", responses=documented)
    async def drain(name: NodeName) -> Response:
        """The node gets no new requests; those that run there run to their end."""
        return happen(name, Event.DRAIN)

    @app.post("/api/nodes/{name:path}/undrain", responses=documented)
    async def undrain(name: NodeName) -> Response:
        """A draining node joins again: it serves as soon as its health check has passed."""
        return happen(name, Event.UNDRAIN)

    @app.post("/api/explain", responses=_documented(answers.ExplainAnswer, 400, 401, 403, 413, 422))
    async def explained(asked: ExplainRequest) -> Response:
        """Where a request would go now, and why not elsewhere. Nothing is reserved."""
        return _json(explain(service.gateway, asked))


def _named(service: Running, name: str) -> Node:
    nodes = service.gateway.balancer.fleet.nodes
    node = nodes.get(name)
    if node is None:
        known = ", ".join(sorted(nodes)[:50]) or "none"
        raise Denied(404, "unknown_node", f"there is no node {name!r}; there are: {known}")
    return node


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


# -- errors


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = PHRASES.get(error.status_code, "malformed_request")
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is nothing at {request.url.path}; /openapi.json lists what there is"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed here"
    return Response(error_body(code, message), error.status_code, error.headers, "application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(_problem(found) for found in error.errors()[:5])
    return Response(error_body("invalid_request", problems), 422, media_type="application/json")


def _problem(found: Any) -> str:
    """One field and what is wrong with it. The value is not repeated: it may be a credential."""
    place, *path = (str(part) for part in found["loc"])
    where = ".".join(path)
    if found["type"] == "json_invalid":
        return f"the body is not valid JSON: {found['ctx']['error']} (character {where})"
    if found["type"] == "model_attributes_type":
        return "body: a JSON object is needed, and the header Content-Type: application/json"
    message = str(found["msg"])
    return f"{where or place}: {message[0].lower()}{message[1:]}"


# -- the OpenAPI document


def _content(kind: type[msgspec.Struct], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": {"$ref": _SCHEMAS[kind]}}}}


def _documented(kind: type[msgspec.Struct], *errors: int) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {200: _content(kind, (kind.__doc__ or "").strip())}
    for status in errors:
        found[status] = _content(answers.ErrorAnswer, ERRORS[status])
    return found


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, schemas = msgspec.json.schema_components(_ANSWERS, ref_template="#/components/schemas/{name}")
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas)
        app.openapi_schema = document
    return app.openapi_schema


__all__ = ["create_app"]
