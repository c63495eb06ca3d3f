"""The application: `create_app`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from shardcost import __version__, catalog
from shardcost.errors import ShardcostError
from shardcost.web.pages import Assets


def create_app() -> FastAPI:
    """Return the application."""
    app = FastAPI(title="shardcost", version=__version__, docs_url=None, redoc_url=None)
    assets = Assets()

    def sent(name: str) -> Response:
        found = Assets().find(name)
        if found is None:
            return JSONResponse({"detail": "there is no such page"}, 404)
        return Response(found.content, media_type=found.kind, headers={"Cache-Control": "no-cache"})

    @app.get("/")
    async def page() -> Response:
        return sent("index.html")

    @app.get("/static/{name:path}")
    async def static(name: str) -> Response:
        return sent(name)

    @app.exception_handler(ShardcostError)
    async def refused(_: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 422)

    @app.get("/api/catalog")
    def whole_catalog() -> Any:
        from shardcost.web.listing import listing

        return listing()

    @app.post("/api/estimate")
    def estimate(ask: dict[str, Any]) -> Any:
        return _estimate(ask)

    return app


def _estimate(ask: dict[str, Any]) -> Any:
    from shardcost.estimate import estimate
    from shardcost.layout import Layout
    from shardcost.cluster import Cluster
    from shardcost.model import Model
    from shardcost.software import Software
    from shardcost.report.estimate import as_data, details, title
    from shardcost.asked.workloads import FORMATS, SIZES, workload_of

    words = (*SIZES, *FORMATS, "adapters", "phase")
    given = Namespace(**{name: ask.get(name) for name in words})
    for name in SIZES:
        value = getattr(given, name)
        setattr(given, name, None if value is None else str(value))
    degrees = {
        n: ask[n]
        for n in (
            "tp",
            "cp",
            "pp",
            "dp",
            "ep",
            "chunks",
            "micro_batch",
            "zero",
            "shard_degree",
            "recompute",
            "schedule",
            "scheme",
            "context_scheme",
            "order",
            "imbalance",
            "sequence_parallel",
        )
        if ask.get(n) is not None
    }
    if ask.get("gpus") and "dp" not in degrees:
        degrees["dp"] = ask["gpus"] // (
            degrees.get("tp", 1) * degrees.get("cp", 1) * degrees.get("pp", 1)
        )
    software = None if ask.get("software") is None else Software.named(ask["software"])
    model = Model.from_hf(ask["config"]) if ask.get("config") else Model.named(ask["model"])
    found = estimate(
        model,
        Cluster.named(ask["on"], ask.get("network")),
        Layout(**degrees),
        workload_of(given),
        software=software,
    )
    return as_data(found) | {"title": title(found), "details": details(found)}
