"""The application: which path answers what. `create_app` puts it together."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
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
from shardcost.web import asks, shapes
from shardcost.web.crew import BusyError, Crew, LateError, Reply
from shardcost.web.guard import LOOPBACK, MISTAKE, Guard
from shardcost.web.jobs import Job, Jobs
from shardcost.web.limits import (
    FILE_BYTES,
    FILE_S,
    FILES,
    FILES_WAITING,
    MOST_CHARACTERS,
    QUESTION_S,
    QUESTIONS_WAITING,
    REMEMBERED,
    REMEMBERED_BYTES,
)
from shardcost.web.pages import Assets
from shardcost.web.told import first_fault
from shardcost.web.worker import IN_NO_HURRY

_log = logging.getLogger("shardcost.web")
_ABOUT: Final = """\
What it costs to shard a transformer over accelerators: the answers of the command line as JSON.
Figures are in base units: seconds, bytes, FLOP per second. Fields have the names of the options,
with underscores; a field that is left out or null has the option's default. Nothing is kept of what
is asked but answers to give again, and nothing is sent elsewhere."""
_TELLS_NOBODY: Final[Any] = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""Whatever the environment says."""
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    403: {"model": shapes.Refused, "description": "asked by a foreign page"},
    408: {"model": shapes.Refused, "description": "the body took too long to arrive"},
    413: {"model": shapes.Refused, "description": "the body is too large"},
    415: {"model": shapes.Refused, "description": "the body is not sent as application/json"},
    421: {"model": shapes.Refused, "description": "the server is not known by that name"},
    422: {"model": shapes.Refused, "description": "the question cannot be answered, in one line"},
    429: {"model": shapes.Refused, "description": "too many ask at the same time"},
    503: {"model": shapes.Refused, "description": "the answer takes too long"},
}
_FOREIGN: Final[dict[int | str, dict[str, Any]]] = {
    status: _REFUSALS[status] for status in (403, 421)
}
_NO_SEARCH: Final = "there is no such search, or not any more"
_UNKNOWN_JOB: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": shapes.Refused, "description": _NO_SEARCH}
}


_DRAWN: Final = ("html",)
"""Tasks that take seconds, as pictures are drawn: no question waits for them."""


class _Question(NamedTuple):
    """A path that takes a JSON object and answers at once."""

    path: str
    task: str
    body: type[asks.Asked]
    answer: type[shapes.Shape] | str
    """Its shape, or the media type of what is no JSON."""
    summary: str


_QUESTIONS: Final = (
    _Question(
        "estimate", "estimate", asks.Ask, shapes.Estimated,
        "What a layout costs: time by part, communication, memory",
    ),
    _Question(
        "advice", "advice", asks.Ask, shapes.Advised,
        "What neighbouring layouts cost, what limits this one, what to change",
    ),
    _Question(
        "timeline", "timeline", asks.TimelineAsk, shapes.Timeline,
        "What runs when, in one layer or in the whole step",
    ),
    _Question(
        "scaling", "scaling", asks.ScalingAsk, shapes.Scaled,
        "How the cost changes with one option",
    ),
    _Question(
        "roofline", "roofline", asks.Ask, shapes.Roofline,
        "The kernels of a layer under the device's roof",
    ),
    _Question("messages", "messages", asks.Ask, shapes.Messages, "Every collective of a step"),
    _Question(
        "collective", "collective", asks.CollectiveAsk, shapes.Collective,
        "How long a collective takes, for one size or many",
    ),
    _Question(
        "schedule", "schedule", asks.ScheduleAsk, shapes.Steps,
        "A collective step by step: who sends what to whom",
    ),
    _Question("why", "why", asks.WhyAsk, shapes.Explained, "Where a figure comes from"),
    _Question(
        "commands", "commands", asks.Ask, shapes.Commands,
        "The command and the Python that ask the same",
    ),
    _Question(
        "export/trace", "trace", asks.Ask, shapes.Trace,
        "The timeline of a step for Perfetto",
    ),
    _Question("export/csv", "csv", asks.Ask, "text/csv", "The figures of an estimate as a table"),
    _Question(
        "export/html", "html", asks.Ask, "text/html", "The report of an estimate as one page"
    ),
)  # fmt: skip


class _Body(Request):
    """A request whose JSON is read without trusting it."""

    async def json(self) -> Any:
        """Return the body; numbers without bound, nesting without end and NaN are refused."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            said = " ".join(str(error).split())
            raise HTTPException(422, f"the body of the request is not JSON: {said}") from None


class _Route(APIRoute):
    """Hands such requests on."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Body(request.scope, request.receive))

        return handled


class Desk:
    """Where questions are handed to those who compute, and answers remembered."""

    def __init__(self) -> None:
        cores = max(1, min(4, os.cpu_count() or 1))
        self.questions = Crew(cores, kept=cores, waiting=QUESTIONS_WAITING, warm=list(asks.FIRST))
        self.patient = Crew(FILES, kept=1, waiting=FILES_WAITING, warm=(IN_NO_HURRY,))
        self.jobs = Jobs()
        self.remembered: OrderedDict[tuple[str, str, bool], Reply] = OrderedDict()

    async def start(self) -> None:
        """Have those at hand who answer first."""
        await self.questions.start()
        await self.patient.start()
        await self.jobs.crew.start()

    async def end(self) -> None:
        """End everything that computes."""
        await self.jobs.end()
        await self.patient.end()
        await self.questions.end()

    async def ask(self, task: str, ask: asks.Asked | None, request: Request) -> Reply:
        """Return the answer to a question, computed or remembered."""
        text = "{}" if ask is None else ask.model_dump_json()
        zipped = _takes_gzip(request)
        key = task, text, zipped
        if key in self.remembered:
            self.remembered.move_to_end(key)
            reply = self.remembered[key]
            return Reply(reply.head | {"seconds": 0.0}, reply.content)
        fields = {} if ask is None else ask.model_dump()
        head = {"task": task, "ask": fields, "gzip": zipped}
        if task in _DRAWN:
            reply = await self.patient.ask(head, within_s=FILE_S)
        else:
            reply = await self.questions.ask(head, within_s=QUESTION_S)
        size = len(text) + len(reply.content)
        if reply.state in {"done", "refused"} and size <= REMEMBERED_BYTES:
            self.remembered[key] = reply
            if len(self.remembered) > REMEMBERED:
                self.remembered.popitem(last=False)
        return reply


def create_app(hosts: Collection[str] = LOOPBACK) -> FastAPI:
    """Return the application.

    Args:
        hosts: Names by which the server may be called.
    """
    desk = Desk()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await desk.start()
        yield
        await desk.end()

    app = FastAPI(
        title="shardcost",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        telemetry=_TELLS_NOBODY,
    )
    app.router.route_class = _Route
    _add_pages(app)
    for question in _QUESTIONS:
        _add_question(app, desk, question)
    _add_catalog(app, desk)
    _add_searches(app, desk)
    _add_files(app, desk)
    _add_refusals(app)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _response(reply: Reply, request: Request) -> Response:
    """Return what a process answered as it is sent."""
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
        if reply.head.get("impossible"):
            return JSONResponse({**detail, "impossible": True}, 422, timing)
        return JSONResponse(detail, 422, timing)
    if reply.state == "unable":
        return JSONResponse(detail, 503, timing)
    _log.error("%s: %s", request.url.path, reply.head["detail"])
    return JSONResponse({"detail": MISTAKE}, 500)


def _add_question(app: FastAPI, desk: Desk, question: _Question) -> None:
    async def answer(request: Request, ask: Any) -> Response:
        return _response(await desk.ask(question.task, ask, request), request)

    answer.__annotations__["request"] = Request
    answer.__annotations__["ask"] = question.body
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
        name=question.task,
        summary=question.summary,
        response_class=Response if isinstance(shape, str) else JSONResponse,
        responses={200: good, **_REFUSALS},
    )


def _add_catalog(app: FastAPI, desk: Desk) -> None:
    @app.get(
        "/api/catalog",
        summary="What can be chosen: models, clusters, networks, software, words",
        responses={200: {"model": shapes.Catalog}, **_FOREIGN},
    )
    async def catalog(request: Request) -> Response:
        return _response(await desk.ask("catalog", None, request), request)


def _add_searches(app: FastAPI, desk: Desk) -> None:
    @app.post(
        "/api/plan",
        status_code=202,
        summary="Begin a search over layouts; ask for its result by the name of its job",
        responses={202: {"model": shapes.Begun}, **_REFUSALS},
    )
    async def begin(request: Request, ask: asks.PlanAsk) -> Response:
        checked = await desk.ask("plan_check", ask, request)
        if checked.state != "done":
            return _response(checked, request)
        cells = from_json(checked.content)["cells"]
        job = desk.jobs.begin(ask.model_dump(), cells)
        return JSONResponse({"job": job.name, "cells": cells}, 202)

    @app.get(
        "/api/plan/{job}",
        summary="How a search stands, and what it found",
        responses={200: {"model": shapes.Search}, **_FOREIGN, **_UNKNOWN_JOB},
    )
    async def look(job: str) -> Response:
        return JSONResponse(_known(desk, job).as_data())

    @app.delete(
        "/api/plan/{job}",
        summary="End a search",
        responses={200: {"model": shapes.Search}, **_FOREIGN, **_UNKNOWN_JOB},
    )
    async def cancel(job: str) -> Response:
        found = _known(desk, job)
        desk.jobs.cancel(found)
        return JSONResponse(found.as_data())


def _known(desk: Desk, name: str) -> Job:
    found = desk.jobs.find(name)
    if found is None:
        raise HTTPException(404, _NO_SEARCH)
    return found


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _add_files(app: FastAPI, desk: Desk) -> None:
    raw = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    @app.post(
        "/api/file",
        summary="What a file means (log, trace, topology, config, profile), and how to use it",
        description=f"The body is the file, of at most {FILE_BYTES // 2**20} MiB, whatever its"
        " Content-Type, sent with the header X-Shardcost: 1.",
        openapi_extra={"requestBody": {"required": True, "content": raw}},
        responses={200: {"model": shapes.Dropped}, **_REFUSALS},
    )
    async def file(
        request: Request,
        _mark: Annotated[str, Header(alias="X-Shardcost", pattern="^1$", description="1")],
        name: Annotated[
            str, Query(max_length=MOST_CHARACTERS, description="what it is called: only shown")
        ] = "file",
    ) -> Response:
        zipped = _takes_gzip(request)
        head = {"task": "file", "name": name, "gzip": zipped}
        reply = await desk.patient.ask(head, await request.body(), within_s=FILE_S)
        return _response(reply, request)


def _add_pages(app: FastAPI) -> None:
    assets = Assets()

    def sent(name: str, request: Request) -> Response:
        found = assets.find(name)
        if found is None:
            raise HTTPException(404, "there is no such page")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == found.tag:
            return Response(status_code=304, headers=headers)
        if _takes_gzip(request):
            headers["Content-Encoding"] = "gzip"
            return Response(found.zipped, media_type=found.kind, headers=headers)
        return Response(found.content, media_type=found.kind, headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return sent("index.html", request)

    @app.get("/api", include_in_schema=False)
    async def about(request: Request) -> Response:
        return sent("api.html", request)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        return sent(name, request)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return sent("favicon.svg", request)


def _add_refusals(app: FastAPI) -> None:
    fields = {f"/api/{each.path}": each.body.model_fields for each in _QUESTIONS}
    fields["/api/plan"] = asks.PlanAsk.model_fields

    @app.exception_handler(RequestValidationError)
    async def unfit(request: Request, error: RequestValidationError) -> Response:
        known = fields.get(request.url.path, {})
        faults = error.errors()
        where = [each for each in faults[0]["loc"] if each != "body"]
        field = {"field": str(where[-1])} if where else {}
        return JSONResponse({"detail": str(first_fault(faults, known)), **field}, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, error: AnyHTTPException) -> Response:
        return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(BusyError)
    async def busy(_: Request, _error: BusyError) -> Response:
        detail = "too many ask at the same time; ask again in a moment"
        return JSONResponse({"detail": detail}, 429, {"Retry-After": "1"})

    @app.exception_handler(LateError)
    async def late(_: Request, error: LateError) -> Response:
        return JSONResponse({"detail": str(error)}, 503)
