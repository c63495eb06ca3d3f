"""The application, `create_app`: the routes of the page and of the API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, NamedTuple

from fastapi import FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException as AnyHTTPException

from shardcost import __version__
from shardcost.search.space import MOST_COUNT
from shardcost.web import asks, shapes
from shardcost.web.dispatcher import Dispatcher, Job
from shardcost.web.fields import first_fault, on_page
from shardcost.web.guard import LOOPBACK, MISTAKE, Guard
from shardcost.web.limits import (
    CALIBRATE_S,
    FILE_BYTES,
    FILE_S,
    MOST_CHARACTERS,
)
from shardcost.web.pages import Assets
from shardcost.web.pool import BusyError, LateError, Reply

_log = logging.getLogger("shardcost.web")
_ABOUT: Final = """\
What it costs to shard a transformer over accelerators: the answers of the command line as JSON.
Figures are in base units: seconds, bytes, FLOP per second. Fields have the names of the options,
with underscores; a field that is left out or null has the option's default. Replies are cached;
nothing else of a request is kept, and nothing is sent elsewhere."""
_NO_TELEMETRY: Final[Any] = dict.fromkeys(
    ("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False
)
"""Whatever the environment sets."""
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": shapes.Refused, "description": reason}
    for status, reason in {
        403: "sent by a foreign page",
        408: "the body took too long to arrive",
        413: "the body is too large",
        415: "the body is not sent as application/json",
        421: "the server does not have that name",
        422: "the request is invalid or impossible",
        429: "too many requests at the same time",
        431: "the head is too large",
        503: "computing takes too long",
    }.items()
}
_FOREIGN: Final[dict[int | str, dict[str, Any]]] = {
    status: _REFUSALS[status] for status in (403, 421)
}
_NO_SEARCH: Final = "no such search, or no longer"
_OF_SEARCH: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": shapes.Search},
    404: {"model": shapes.Refused, "description": _NO_SEARCH},
    **_FOREIGN,
}


class _Question(NamedTuple):
    """A path that takes a JSON object and replies at once; its last part is the task."""

    path: str
    body: type[asks.Asked]
    answer: type[shapes.Shape] | str
    """Its shape, or the media type if it is not JSON."""
    summary: str


_QUESTIONS: Final = tuple(_Question(*columns) for columns in (
    ("estimate", asks.RunAsk, shapes.Estimated,
     "What a layout costs: time by part, communication, memory"),
    ("advice", asks.Ask, shapes.Advised,
     "What neighbouring layouts cost, what limits this one, what to change"),
    ("nearest", asks.NearestAsk, shapes.Adjusted,
     "The nearest layout that runs, where one does not"),
    ("timeline", asks.TimelineAsk, shapes.Timeline,
     "What runs when, in one layer or in the whole step"),
    ("scaling", asks.ScalingAsk, shapes.Scaled, "How the cost changes with one option"),
    ("roofline", asks.Ask, shapes.Roofline, "The kernels of a layer under the device's roof"),
    ("messages", asks.Ask, shapes.Messages, "Every collective of a step"),
    ("collective", asks.CollectiveAsk, shapes.Collective,
     "How long a collective takes, for one size or many"),
    ("schedule", asks.ScheduleAsk, shapes.Steps,
     "A collective step by step: who sends what to whom"),
    ("why", asks.WhyAsk, shapes.Explained, "Where a figure comes from"),
    ("load", asks.LoadAsk, shapes.Loaded,
     "Latencies and throughput at a deployment, under one load or several from low to high"),
    ("load/ratio", asks.DeploymentAsk, shapes.Divided,
     "What a deployment holds as its GPUs are divided between prefill and decode"),
    ("commands", asks.Ask, shapes.Commands, "The same request as a command and as Python"),
    ("launch", asks.LaunchAsk, shapes.Launched,
     "The commands that start the layout: Megatron-LM, vLLM, SGLang, TensorRT-LLM"),
    ("export/trace", asks.Ask, shapes.Trace, "The timeline of a step for Perfetto"),
    ("export/csv", asks.Ask, "text/csv", "The figures of an estimate as a table"),
    ("export/html", asks.Ask, "text/html", "The report of an estimate as one page"),
))  # fmt: skip


class _Body(Request):
    """A request whose JSON is not trusted."""

    async def json(self) -> Any:
        """Return the body; unbounded numbers, endless nesting and NaN are refused."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            said = " ".join(str(error).split())
            raise HTTPException(422, f"the body of the request is not JSON: {said}") from None


class _Route(APIRoute):
    """A route of such requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Body(request.scope, request.receive))

        return handled


def create_app(hosts: Collection[str] = LOOPBACK) -> FastAPI:
    """Return the application.

    Args:
        hosts: Host names of the server.
    """
    dispatcher = Dispatcher()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await dispatcher.start()
        yield
        await dispatcher.end()

    app = FastAPI(
        title="shardcost",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        telemetry=_NO_TELEMETRY,
    )
    app.router.route_class = _Route
    _add_pages(app)
    for question in _QUESTIONS:
        _add_question(app, dispatcher, question)
    _add_catalog(app, dispatcher)
    _add_searches(app, dispatcher)
    _add_files(app, dispatcher)
    _add_refusals(app)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _refused(line: str) -> dict[str, str]:
    """Return why there is no answer: the command line's words, and the page's where they differ."""
    said = on_page(line)
    return {"detail": line} if said == line else {"detail": line, "said": said}


def _response(reply: Reply, request: Request) -> Response:
    """Return the reply of a worker as a response."""
    timing = {"Server-Timing": f"compute;dur={1e3 * reply.head.get('seconds', 0.0):.2f}"}
    if reply.state == "done":
        headers = timing | {"Vary": "Accept-Encoding"}
        if reply.head.get("zipped"):
            headers["Content-Encoding"] = "gzip"
        if "name" in reply.head:
            headers["Content-Disposition"] = f'attachment; filename="{reply.head["name"]}"'
        kind = reply.head.get("kind", "application/json")
        return Response(reply.content, media_type=kind, headers=headers)
    detail = {"detail": reply.head["detail"]}
    if reply.state == "refused":
        impossible = {"impossible": True} if reply.head.get("impossible") else {}
        return JSONResponse(_refused(reply.head["detail"]) | impossible, 422, timing)
    if reply.state == "unable":
        return JSONResponse(detail, 503, timing)
    _log.error("%s: %s", request.url.path, reply.head["detail"])
    return JSONResponse({"detail": MISTAKE}, 500)


def _add_question(app: FastAPI, dispatcher: Dispatcher, question: _Question) -> None:
    task = question.path.rpartition("/")[2]

    async def answer(request: Request, ask: Any) -> Response:
        reply = await dispatcher.run(task, ask, zipped=_takes_gzip(request))
        return _response(reply, request)

    answer.__annotations__ |= {"request": Request, "ask": question.body}
    answer.__doc__ = question.body.__doc__
    shape = question.answer
    good: dict[str, Any] = (
        {"content": {shape: {"schema": {"type": "string"}}}, "description": "a file to save"}
        if isinstance(shape, str)
        else {"model": shape}
    )
    app.add_api_route(
        f"/api/{question.path}",
        answer,
        methods=["POST"],
        name=task,
        summary=question.summary,
        response_class=Response if isinstance(shape, str) else JSONResponse,
        responses={200: good, **_REFUSALS},
    )


def _add_catalog(app: FastAPI, dispatcher: Dispatcher) -> None:
    @app.get(
        "/api/catalog",
        summary="What can be chosen: models, clusters, networks, software, words",
        responses={200: {"model": shapes.Catalog}, **_FOREIGN},
    )
    async def catalog(request: Request) -> Response:
        reply = await dispatcher.run("catalog", None, zipped=_takes_gzip(request))
        return _response(reply, request)


def _add_searches(app: FastAPI, dispatcher: Dispatcher) -> None:
    @app.post(
        "/api/plan",
        status_code=202,
        summary="Start a search over layouts; poll its result by the name of its job",
        responses={202: {"model": shapes.Begun}, **_REFUSALS},
    )
    async def begin(request: Request, ask: asks.PlanAsk) -> Response:
        return await begun("plan", request, ask)

    @app.post(
        "/api/plan/load",
        status_code=202,
        summary="Start a search over deployments for a load; poll it as the other",
        responses={202: {"model": shapes.Begun}, **_REFUSALS},
    )
    async def begin_load(request: Request, ask: asks.PlanLoadAsk) -> Response:
        return await begun("plan_load", request, ask)

    async def begun(task: str, request: Request, ask: asks.Asked) -> Response:
        checked = await dispatcher.run(f"{task}_check", ask, zipped=False)
        if checked.state != "done":
            return _response(checked, request)
        cells = from_json(checked.content)["cells"]
        job = dispatcher.jobs.begin(task, ask.model_dump(), cells)
        return JSONResponse({"job": job.name, "cells": cells}, 202)

    def polled(name: str) -> Job:
        job = dispatcher.jobs.poll(name)
        if job is None:
            raise HTTPException(404, _NO_SEARCH)
        return job

    summary = "The state of a search, and its result"

    @app.get("/api/plan/{job}", summary=summary, responses=_OF_SEARCH)
    async def poll(job: str) -> Response:
        return JSONResponse(polled(job).as_data())

    @app.delete("/api/plan/{job}", summary="End a search", responses=_OF_SEARCH)
    async def cancel(job: str) -> Response:
        search = polled(job)
        dispatcher.jobs.cancel(search)
        return JSONResponse(search.as_data())


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _add_files(app: FastAPI, dispatcher: Dispatcher) -> None:
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    @app.post(
        "/api/file",
        summary="What a file means (log, trace, topology, config, profile), and how to use it",
        description=f"The body is the file, of at most {FILE_BYTES // 2**20} MiB, whatever its"
        " Content-Type, sent with the header X-Shardcost: 1. What measurements do not say of the"
        " machine that they were made on is said in the query.",
        openapi_extra={"requestBody": {"required": True, "content": raw}},
        responses={200: {"model": shapes.Dropped}, **_REFUSALS},
    )
    async def file(
        request: Request,
        _mark: Annotated[str, Header(alias="X-Shardcost", pattern="^1$", description="1")],
        name: Annotated[
            str, Query(max_length=MOST_CHARACTERS, description="its name: only shown")
        ] = "file",
        on: Annotated[
            str | None, Query(max_length=MOST_CHARACTERS, description="the cluster it is of")
        ] = None,
        network: Annotated[
            str | None, Query(max_length=MOST_CHARACTERS, description="what joins its nodes")
        ] = None,
        gpus: Annotated[
            int | None, Query(ge=1, le=MOST_COUNT, description="GPUs that took part")
        ] = None,
    ) -> Response:
        stated = {"cluster": on, "network": network, "gpus": gpus}
        head = {"task": "file", "name": name, "stated": stated, "gzip": _takes_gzip(request)}
        within_s = FILE_S + CALIBRATE_S
        reply = await dispatcher.slow.run(head, await request.body(), within_s=within_s)
        return _response(reply, request)


def _add_pages(app: FastAPI) -> None:
    assets = Assets({"options.js": asks.page_module()})
    pages = {"/": "index.html", "/api": "api.html", "/favicon.ico": "favicon.svg"}

    async def page(request: Request) -> Response:
        asset = assets.find(request.path_params.get("name") or pages.get(request.url.path, ""))
        if asset is None:
            raise HTTPException(404, "no such page")
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        if _takes_gzip(request):
            headers["Content-Encoding"] = "gzip"
            return Response(asset.zipped, media_type=asset.kind, headers=headers)
        return Response(asset.content, media_type=asset.kind, headers=headers)

    for path in (*pages, "/static/{name:path}"):
        app.add_route(path, page)  # GET and HEAD


def _add_refusals(app: FastAPI) -> None:
    fields = {f"/api/{question.path}": question.body.model_fields for question in _QUESTIONS}
    fields["/api/plan"] = asks.PlanAsk.model_fields
    fields["/api/plan/load"] = asks.PlanLoadAsk.model_fields

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        known = fields.get(request.url.path, {})
        faults = error.errors()
        where = [part for part in faults[0]["loc"] if part != "body"]
        field = {"field": str(where[-1])} if where else {}
        return JSONResponse(_refused(str(first_fault(faults, known))) | field, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> Response:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(BusyError)
    async def busy(_: Request, _error: BusyError) -> Response:
        detail = "too many requests at the same time; try again in a moment"
        return JSONResponse({"detail": detail}, 429, {"Retry-After": "1"})

    @app.exception_handler(LateError)
    async def late(_: Request, error: LateError) -> Response:
        return JSONResponse({"detail": str(error)}, 503)
