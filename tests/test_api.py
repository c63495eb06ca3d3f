"""The API of the page: answers are the command line's, limits hold, nobody is disturbed."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from page_server import DECODE, JSON, TRAIN, Client, served
from running import run_error, run_json

from shardcost.errors import UsageError
from shardcost.web import answers, asks, limits
from shardcost.web.asks import PlanAsk, field_values
from shardcost.web.dispatcher import Job, Jobs
from shardcost.web.guard import HEADERS, Guard
from shardcost.web.server import hosts_of
from shardcost.web.uploads import shown_name

LONG_SEARCH = {
    "model": "gpt3-175b",
    "on": "a100_sxm",
    "network": "ib_8x200g",
    "gpus": [256, 512, 1024],
    "phase": "train",
    "batch": 1536,
    "sequence_length": 2048,
}
NOWHERE = ("/etc/passwd", "../x.json", "config.json", "/etc", ".", "file:///etc/passwd", "~/x.json")


@pytest.fixture(scope="module")
def page() -> Iterator[Client]:
    with served() as client:
        yield client


def words_of(ask: dict[str, Any]) -> list[str]:
    """Return a question as the command line asks it."""
    options = {name: value for name, value in ask.items() if name not in {"model", "phase"}}
    words = [ask["model"], f"--{ask['phase']}"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def rounded(document: Any) -> Any:
    """Return a document with its numbers to 12 digits: GEMMs are priced one by one or together."""
    if isinstance(document, dict):
        return {name: rounded(each) for name, each in document.items()}
    if isinstance(document, list):
        return [rounded(each) for each in document]
    return float(f"{document:.12g}") if isinstance(document, float) else document


@pytest.mark.parametrize("ask", [DECODE, TRAIN, DECODE | {"sequence_parallel": True}])
def test_an_estimate_is_the_commands(
    page: Client, capsys: pytest.CaptureFixture[str], ask: dict[str, Any]
) -> None:
    found = page.answer("estimate", ask)
    assert found.pop("title").startswith(("Decoding with llama3-8b", "Training llama3-8b"))
    assert found.pop("details")
    assert rounded(found) == rounded(run_json(capsys, "estimate", *words_of(ask)))


def test_fields_that_are_null_are_the_commands_defaults(page: Client) -> None:
    nulls = dict.fromkeys(("tp", "recompute", "imbalance", "sequence_parallel", "adapters"))
    assert page.answer("estimate", {**nulls, **DECODE}) == page.answer("estimate", DECODE)


def test_scaling_is_the_commands(page: Client, capsys: pytest.CaptureFixture[str]) -> None:
    ask = {name: value for name, value in DECODE.items() if name not in {"tp", "gpus"}}
    found = page.answer("scaling", {**ask, "vary": "tp", "values": [1, 2, 4, 8]})
    varied = run_json(capsys, "estimate", *words_of(ask), "--vary", "tp=1,2,4,8")
    assert rounded(found) == rounded(varied)
    free = page.answer("scaling", DECODE)
    assert [row["value"] for row in free["rows"]] == ["1", "2", "4", "8"]


def test_a_collective_is_the_commands(page: Client, capsys: pytest.CaptureFixture[str]) -> None:
    ask = {"collective": "all_reduce", "gpus": 8, "on": "h100_sxm"}
    words = ("collective", "all_reduce", "--gpus", "8", "--on", "h100_sxm", "--size", "64MiB")
    found = page.answer("collective", {**ask, "size": "64MiB"})
    assert found == run_json(capsys, *words)
    assert page.answer("collective", {**ask, "size": 64 * 2**20}) == found
    assert page.answer("collective", {**ask, "size": 2**33})["size_bytes"] == 2**33
    assert "--size" in page.refusal("collective", {**ask, "size": 1.5})
    sweep = page.answer(
        "collective", {**ask, "sweep": "1KiB:1GiB", "network": "efa_8x400g", "gpus": 16}
    )
    assert len(sweep["size_bytes"]) == len(sweep["time_s"]) > 100
    assert sweep["points"]


def test_a_search_is_the_commands(page: Client, capsys: pytest.CaptureFixture[str]) -> None:
    ask = {"model": "llama3-8b", "on": "h100_sxm", "phase": "decode", "context_tokens": 4096}
    more = {"gpus": "1..8", "batch": [1, 64], "fix": {"tp": [1, 8]}, "max_tpot": "30ms", "top": 3}
    found = page.search(ask | more)
    words = ["--gpus", "1..8", "--batch", "1,64", "--fix", "tp=1,8", "--max-tpot", "30ms"]
    told = run_json(capsys, "plan", *words_of(ask), *words, "--top", "3")
    assert found["state"] == "done"
    assert found["done"] == found["cells"] == told["considered"]
    for each in (found["result"], told):
        each.pop("seconds")
    assert found["result"] == told


def test_a_search_without_an_answer_says_why(page: Client) -> None:
    found = page.search({**DECODE_SPACE, "model": "llama3-405b", "gpus": 1})
    assert found["state"] == "done"
    assert found["detail"].startswith("nothing feasible among")
    assert any("memory" in reason for reason in found["reasons"])
    assert found["result"]["best"] == []


DECODE_SPACE = {"on": "h100_sxm", "phase": "decode", "batch": 64, "context_tokens": 4096}


@pytest.mark.parametrize("ask", [DECODE, TRAIN])
def test_every_question_has_its_answer(page: Client, ask: dict[str, Any]) -> None:
    estimated = page.answer("estimate", ask)
    advice = page.answer("advice", ask)
    assert any(step["current"] for step in advice["steps"]["tp"])
    assert advice["limit"]["words"]
    for of in ("layer", "step"):
        timeline = page.answer("timeline", {**ask, "of": of})
        assert timeline["of"] == of
        assert all(0 <= e["stream"] < len(timeline["streams"]) for e in timeline["events"])
    timeline = page.answer("timeline", ask)
    assert timeline["span_s"] == pytest.approx(estimated["time_s"], rel=0.01)
    assert page.answer("roofline", ask)["operations"]
    assert page.answer("messages", ask)["messages"]
    why = page.answer("why", {**ask, "figure": "time_s"})
    assert why["value"] == estimated["time_s"]
    assert why["formula"]


def test_what_is_shown_can_be_asked_again(page: Client, capsys: pytest.CaptureFixture[str]) -> None:
    found = page.answer("commands", DECODE)
    words = found["command"].split()
    assert words[0] == "shardcost"
    told = run_json(capsys, *words[1:])
    scope: dict[str, Any] = {}
    exec(found["python"], scope)
    assert scope["result"].time_s == told["time_s"] == page.answer("estimate", DECODE)["time_s"]


def test_why_of_a_collective(page: Client) -> None:
    ring = {"collective": "all_reduce", "size": "64MiB", "gpus": 8, "on": "h100_sxm"}
    found = page.answer("why", {"figure": "collective.time_s", "collective": ring})
    assert found["value"] == page.answer("collective", ring)["time_s"]
    assert "figure" in page.refusal("why", {"figure": "nothing", "collective": ring})
    assert "--train" in page.refusal("why", {"figure": "time_s"})
    assert page.refusal("why", DECODE) == "missing figure"


def test_the_steps_of_a_collective(page: Client) -> None:
    ask = {"collective": "all_reduce", "algorithm": "ring", "ranks": 4, "size": 4096}
    found = page.answer("schedule", ask)
    assert (found["ranks"], len(found["steps"])) == (4, 6)
    simulated = page.answer("schedule", {**ask, "on": "h100_sxm"})
    assert simulated["totals"]["time_s"] > 0
    assert "ranks" in page.refusal("schedule", {**ask, "ranks": 17})
    assert page.refusal("schedule", {**ask, "size": None}) == "missing size"


def test_the_catalog_lists_what_can_be_asked(page: Client) -> None:
    found = page.get("/api/catalog").data
    assert "llama3-70b" in {each["name"] for each in found["models"]}
    phases = {each["name"]: each["phases"] for each in found["software"]}
    assert phases["megatron_core"] == ["train"]
    assert phases["trtllm"] == ["prefill", "decode"]
    assert found["choices"]["recompute"][0] == "none"
    ring = next(each for each in found["algorithms"] if each["name"] == "ring")
    assert "all_reduce" in ring["collectives"]


@pytest.mark.parametrize(
    ("path", "kind"), [("trace", "application/json"), ("csv", "text/csv"), ("html", "text/html")]
)
def test_exports_are_files_to_save(page: Client, path: str, kind: str) -> None:
    found = page.post(f"export/{path}", TRAIN)
    assert found.status == 200
    assert found.headers["content-type"].startswith(kind)
    assert found.headers["content-disposition"].startswith("attachment; filename=")
    text = found.content.decode()
    assert {"trace": "traceEvents", "csv": "time_s", "html": "<!DOCTYPE html>"}[path] in text


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 0},
        {"tp": 3},
        {"batch": 0},
        {"dtype": "fp99"},
        {"recompute": "some"},
        {"software": "nothing"},
        {"network": "carrier pigeons"},
        {"sequence_length": 5},
        {"context_tokens": None},
        {"model": "llama9"},
        {"on": "z100"},
        {"imbalance": 0.0},
        {"gpus": 7},
        {"zero": 4},
    ],
)
def test_errors_are_the_commands(
    page: Client, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    ask = {name: value for name, value in (DECODE | change).items() if value is not None}
    told = run_error(capsys, "estimate", *words_of(ask)).removeprefix("shardcost: ").rstrip("\n")
    assert page.refusal("estimate", DECODE | change) == told


def test_what_cannot_be_done_is_told_from_what_is_asked_wrongly(page: Client) -> None:
    assert page.post("estimate", DECODE | {"gpus": 7}).data["impossible"] is True
    assert "impossible" not in page.post("estimate", DECODE | {"model": "x"}).data


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"tp": "x"}, "--tp must be a whole number, got 'x'"),
        ({"tp": 1.5}, "--tp must be a whole number, got 1.5 (float)"),
        ({"tp": True}, "--tp must be a whole number, got True (bool)"),
        ({"tp": 10**12}, "--tp must be at most 1000000000, got 1000000000000"),
        ({"tp": 10**400}, None),
        ({"imbalance": "x"}, "--imbalance must be a number, got 'x'"),
        ({"imbalance": 1e17}, "--imbalance must be a number of at most 1e+12, got 1e+17 (float)"),
        ({"imbalance": 10**400}, None),
        ({"sequence_parallel": 1}, "--sequence-parallel must be true or false, got 1 (int)"),
        ({"model": 5}, "model must be a text, got 5 (int)"),
        ({"model": "x" * 1000}, None),
        ({"config": []}, "config must be an object, got [] (list)"),
        ({"tpp": 8}, None),
        ({"phase": "dream"}, None),
        ({"phase": None}, None),
    ],
)
def test_fields_of_a_wrong_kind_are_refused_in_one_line(
    page: Client, change: dict[str, Any], line: str | None
) -> None:
    said = page.refusal("estimate", DECODE | change)
    assert len(said) < 300
    if line is not None:
        assert said == line


def test_an_unknown_field_is_named(page: Client) -> None:
    said = page.refusal("estimate", DECODE | {"micro_bach": 8})
    assert said == "unknown field 'micro_bach'; did you mean micro_batch or batch?"
    assert page.post("estimate", DECODE | {"tp": "x"}).data["field"] == "tp"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"NaN", b'{"tp": NaN}', b"\xff\xfe", b"[" * 10**5]
)
def test_a_body_that_is_no_object_is_refused(page: Client, body: bytes) -> None:
    found = page.ask("POST", "/api/estimate", body, JSON)
    assert found.status == 422
    assert found.detail.startswith("the body of the request")
    assert len(found.detail) < 200


def test_a_lone_surrogate_breaks_nothing(page: Client) -> None:
    body = json.dumps(DECODE).replace("llama3-8b", "\\ud800").encode()
    assert page.ask("POST", "/api/estimate", body, JSON).status == 422


@pytest.mark.parametrize("text", NOWHERE)
def test_no_path_reaches_the_file_system(page: Client, text: str) -> None:
    assert page.refusal("estimate", DECODE | {"model": text}).startswith("unknown model")
    for place in (text, "x.toml", "/etc/x.toml"):
        assert page.refusal("estimate", DECODE | {"on": place}).startswith("unknown cluster")
    assert page.refusal("estimate", DECODE | {"network": text}).startswith("unknown network")
    assert page.refusal("estimate", DECODE | {"software": text}).startswith("unknown software")
    search = {**DECODE_SPACE, "model": text}
    assert page.refusal("plan", search).startswith("unknown model")
    ring = {"collective": "all_reduce", "size": 1, "gpus": 8, "on": "my.toml"}
    assert page.refusal("collective", ring).startswith("unknown cluster")


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "app.js%00", "panels", ""]
)
def test_only_files_of_the_page_are_served(page: Client, path: str) -> None:
    assert page.get(f"/static/{path}").status == 404


def test_the_page_and_its_files_are_served_small_and_once(page: Client) -> None:
    found = page.get("/")
    assert found.status == 200
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert page.get("/", If_None_Match=found.headers["etag"]).status == 304
    zipped = page.get("/", Accept_Encoding="gzip")
    assert gzip.decompress(zipped.content) == found.content
    names = re.findall(rb'(?:src|href)="/?(static/[\w./]+)"', found.content)
    assert names
    for name in names:
        assert page.get(f"/{name.decode()}").status == 200
    assert page.get("/api").status == 200
    head = page.ask("HEAD", "/")
    assert (head.status, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(found.content)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/api/catalog"),
        ("POST", "/api/estimate"),
        ("GET", "/nothing"),
        ("PUT", "/api/estimate"),
        ("GET", "/api/plan/x"),
        ("OPTIONS", "/api/estimate"),
    ],
)
def test_every_answer_has_the_headers(page: Client, method: str, path: str) -> None:
    found = page.ask(method, path, json.dumps(DECODE), JSON)
    for name, value in HEADERS.items():
        assert found.headers[name.lower()] == value
    assert "server" not in found.headers
    assert not [name for name in found.headers if name.startswith("access-control")]
    assert found.headers["cache-control"] == ("no-cache" if path == "/" else "no-store")
    assert ("server-timing" in found.headers) == path.startswith("/api")


def test_answers_say_how_long_they_took_and_are_zipped(page: Client) -> None:
    body = json.dumps(DECODE)
    found = page.ask("POST", "/api/estimate", body, JSON | {"Accept-Encoding": "gzip, br"})
    assert found.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(found.content)) == page.answer("estimate", DECODE)
    assert re.match(r"compute;dur=[\d.]+, total;dur=[\d.]+$", found.headers["server-timing"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost", "host": "evil.example"}, 400),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_foreign_pages_cannot_ask(page: Client, headers: dict[str, str], status: int) -> None:
    found = page.ask("POST", "/api/estimate", json.dumps(DECODE), JSON | headers)
    assert found.status == status
    if status != 200:
        assert found.detail


def test_a_server_for_the_network_answers_to_addresses_and_its_own_name_only() -> None:
    guard = Guard(lambda *_: None, hosts_of("0.0.0.0"))  # type: ignore[arg-type]
    for name in ("192.168.1.20", "[fe80::1]", "localhost", socket.gethostname().lower()):
        assert guard._is_known(name)
    assert not guard._is_known("evil.example")
    assert not Guard(guard.app, hosts_of("192.168.1.20"))._is_known("192.168.1.21")


def test_a_link_from_elsewhere_may_be_followed(page: Client) -> None:
    elsewhere = {"Sec_Fetch_Site": "cross-site"}
    assert page.get("/", **elsewhere, Sec_Fetch_Mode="navigate").status == 200
    assert page.get("/", **elsewhere, Sec_Fetch_Mode="no-cors").status == 403
    assert page.get("/api/catalog", **elsewhere).status == 403


def test_a_file_needs_a_header_that_foreign_pages_cannot_send(page: Client) -> None:
    assert page.ask("POST", "/api/file?name=x", b"{}").status == 403


def test_a_config_that_was_dropped_can_be_asked_of(page: Client, tiny_config: Any) -> None:
    content = (tiny_config() / "config.json").read_bytes()
    dropped = page.drop("my-tiny_config.json", content)
    assert dropped.status == 200
    found = dropped.data
    assert (found["name"], found["kind"]) == ("my-tiny_config.json", "hf-config")
    ask = {name: value for name, value in DECODE.items() if name != "model"}
    assert page.answer("estimate", ask | found["use"])["model"] == "my-tiny"
    both = page.refusal("estimate", DECODE | found["use"])
    assert both == "model and config exclude each other; give one"
    command = page.answer("commands", ask | found["use"])["command"]
    assert "config.json" in command


def test_a_log_that_was_dropped_becomes_a_cluster(page: Client, repository: Path) -> None:
    content = (repository / "docs" / "examples" / "all_reduce-8.txt").read_bytes()
    found = page.drop("all_reduce-8.txt", content).data
    assert found["kind"] == "nccl-tests"
    assert found["words"][0].startswith("all_reduce-8.txt: all_reduce on 8 GPUs")
    profile = found["use"]["profile"]
    ring = {"collective": "all_reduce", "size": "64MiB", "gpus": 8}
    calibrated = page.answer("collective", {**ring, "profile": profile})
    assert calibrated["time_s"] != page.answer("collective", {**ring, "on": "h200_sxm"})["time_s"]
    ask = {name: value for name, value in DECODE.items() if name != "on"}
    name = page.answer("estimate", {**ask, "profile": profile})["cluster"]
    assert name == "h200_sxm-calibrated-on-all_reduce-8.txt"
    assert page.drop("p.toml", profile.encode()).data["use"] == {"profile": profile}
    broken = profile.replace("based_on", "based_off")
    assert page.refusal("estimate", {**ask, "profile": broken}).startswith("profile: ")


def test_a_topology_that_was_dropped_names_a_cluster(page: Client, repository: Path) -> None:
    content = (repository / "docs" / "examples" / "topo-8.txt").read_bytes()
    found = page.drop("topo-8.txt", content).data
    assert found["use"]["on"] == "h100_sxm"
    assert "tmp" not in json.dumps(found)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"root:x:0:0",
        b"{}",
        b"{" * 10**5,
        gzip.compress(b"\0" * 10**8),
        b"a,b\n1",
    ],
)
def test_other_files_are_refused_in_one_line(page: Client, content: bytes) -> None:
    found = page.drop("..%2F..%2Fetc%2Fpasswd", content)
    assert found.status == 422
    assert found.detail.startswith("passwd: ")
    assert "/tmp" not in found.detail


def test_names_of_files_are_only_shown() -> None:
    assert shown_name("C:\\logs\\all_reduce.txt") == "all_reduce.txt"
    assert shown_name("../../etc/passwd") == "passwd"
    assert shown_name("a\x1b[31m\n" + "b" * 500) == "b" * 80
    assert shown_name("/") == "file"


def test_a_body_that_is_too_large_is_refused(page: Client) -> None:
    body = b" " * (limits.JSON_BYTES + 1)
    assert page.ask("POST", "/api/estimate", body, JSON).status == 413
    with page.socket() as connection:  # says so before it sends
        head = f"Host: localhost\r\nX-Shardcost: 1\r\nContent-Length: {2**40}"
        connection.sendall(f"POST /api/file HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(4096)


@pytest.mark.parametrize("part", ["GET /?", "GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_head_that_is_too_large_is_refused(page: Client, part: str) -> None:
    with page.socket() as connection:  # it never ends
        connection.sendall(part.encode() + b"a" * (limits.HEAD_BYTES + 2**14))
        assert connection.recv(4096).startswith(b"HTTP/1.1 431 ")
    assert page.get("/", X="a" * (limits.HEAD_BYTES + 1)).status == 431
    assert page.get("/", X="a" * (limits.HEAD_BYTES - 2**12)).status == 200


def test_a_request_has_one_host(page: Client) -> None:
    with page.socket() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: example.org\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_a_trailer_without_an_end_is_cut_off(page: Client) -> None:
    with page.socket() as connection:
        head = "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
        connection.sendall(f"POST /api/estimate HTTP/1.1\r\n{head}\r\n\r\n".encode())
        connection.sendall(b"2\r\n{}\r\n0\r\nX: ")
        with pytest.raises(ConnectionError):
            connection.sendall(b"a" * (256 * limits.HEAD_BYTES))


def test_a_body_without_an_end_is_refused_while_it_is_sent(page: Client) -> None:
    with page.socket() as connection:
        head = "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
        connection.sendall(f"POST /api/estimate HTTP/1.1\r\n{head}\r\n\r\n".encode())
        sent = 0
        with suppress(ConnectionError):
            while sent < 64 * limits.JSON_BYTES:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        assert sent < 16 * limits.JSON_BYTES


def test_who_sends_nothing_or_slowly_is_hung_up_on() -> None:
    head = b"POST /api/estimate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with served(HEAD_S=1.0, BODY_S=1.0) as client, ExitStack() as stack:
        silent, half, slow = (stack.enter_context(client.socket()) for _ in range(3))
        half.sendall(head)
        slow.sendall(head + b"Content-Length: 1000\r\n\r\n{")
        for connection in (silent, half):
            connection.settimeout(20)
            with suppress(ConnectionError):
                assert connection.recv(1) == b""
        assert b" 408 " in slow.recv(4096)


@pytest.fixture(scope="module")
def narrow() -> Iterator[Client]:
    """Return a client of a server that takes few connections."""
    with served(CONNECTIONS=24, IDLE_CONNECTIONS=12) as client:
        yield client


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed a connection on which it says nothing."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def opened(client: Client, count: int, source: str) -> list[socket.socket]:
    """Return connections from an address of this machine that send half of a request."""
    made = []
    for _ in range(count):
        connection = socket.create_connection(
            ("127.0.0.1", client.port), timeout=20, source_address=(source, 0)
        )
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        made.append(connection)
    return made


def test_half_open_connections_shut_out_nobody(narrow: Client) -> None:
    """An address has so many, all together so many more; the oldest ones give way."""
    with ExitStack() as stack:
        for source, count in (("127.0.0.2", 40), ("127.0.0.3", 10), ("127.0.0.4", 10)):
            held = opened(narrow, count, source)
            for each in held:
                stack.enter_context(each)
            assert narrow.get("/").status == 200  # from a fourth address
            kept = [is_open(each) for each in held]
            assert kept == sorted(kept)  # the newest
            assert sum(kept) == min(count, 12)


def test_a_connection_that_is_answered_gives_way_to_none(narrow: Client) -> None:
    busy = http.client.HTTPConnection("127.0.0.1", narrow.port, timeout=60)
    ask = {**DECODE, "isl": 1024, "osl": 64, "rate": 4, "requests": 2000}
    asked = {name: each for name, each in ask.items() if name in asks.LoadAsk.model_fields}
    busy.request("POST", "/api/load", json.dumps(asked), JSON)
    for each in opened(narrow, 60, "127.0.0.1"):
        each.close()
    assert busy.getresponse().status == 200
    busy.close()


def test_many_values_and_layouts_are_refused(page: Client) -> None:
    many = list(range(1, limits.MOST_VALUES + 2))
    assert "1 to 64 values" in page.refusal("scaling", {**DECODE, "vary": "batch", "values": many})
    space = {**DECODE_SPACE, "model": "llama3-8b"}
    assert "1 to 64 values" in page.refusal("plan", {**space, "fix": {"tp": many}})
    for name in ("gpus", "batch"):  # highly composite: listing all splits would take minutes
        said = page.refusal("plan", {**space, "gpus": 8, name: 735134400})
        assert said == f"--{name} must be at most 1,048,576 in a search, got 735134400"
    some = {name: list(range(1, 65)) for name in ("etp", "shard_degree", "recompute_layers")}
    choices = page.refusal("plan", {**LONG_SEARCH, "model": "mixtral-8x7b", "fix": some})
    assert "combinations of choices must be at most 262,144 in a search" in choices
    assert "--top must be at most 64" in page.refusal("plan", {**space, "gpus": 8, "top": 65})
    assert "--fix" in page.refusal("plan", {**space, "fix": {"tpp": [1]}})
    drawn = page.refusal("timeline", {**TRAIN, "batch": 10**9})
    assert "to be drawn" in drawn
    assert "to be drawn" in page.refusal("export/trace", {**TRAIN, "batch": 4 * 10**5})


def test_a_search_out_of_time_says_what_would_make_it_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SEARCH_S", 0.0)
    asked = field_values(PlanAsk, LONG_SEARCH)
    cells = answers.plan_check(asked)["cells"]
    with pytest.raises(UsageError) as error:
        answers.plan(asked, lambda *_: None)
    said = re.fullmatch(
        r"the search was stopped after 0 s, ([\d,]+) of ([\d,]+) layouts done: fix micro_batch, of"
        r" which one value leaves 1 in ([\d.]+) layouts, or run it with `shardcost plan`",
        str(error.value),
    )
    assert said
    assert 0 < int(said[1].replace(",", "")) < int(said[2].replace(",", "")) == cells
    fixed = answers.plan_check({**asked, "fix": {"micro_batch": 1}})["cells"]
    assert fixed * float(said[3]) == pytest.approx(cells)


def test_a_search_can_be_watched_and_ended(page: Client) -> None:
    begun = page.post("plan", LONG_SEARCH)
    assert begun.status == 202
    path = f"/api/plan/{begun.data['job']}"
    while (found := page.get(path).data)["done"] == 0:
        assert found["state"] in {"waiting", "running"}
        time.sleep(0.1)
    assert 0 < found["done"] < found["cells"]
    assert page.answer("estimate", DECODE)  # the others go on
    ended = page.ask("DELETE", path)
    assert (ended.status, ended.data["state"]) == (200, "cancelled")
    assert page.get(path).data["state"] == "cancelled"
    assert page.get("/api/plan/nothing").status == 404
    assert page.ask("DELETE", "/api/plan/nothing").status == 404


def test_so_many_searches_wait_and_no_more(page: Client) -> None:
    jobs: list[str] = []
    refused = ""
    for number in range(limits.SEARCHES + limits.SEARCHES_WAITING + 2):
        found = page.post("plan", {**LONG_SEARCH, "sequence_length": 2048 + 64 * number})
        if found.status == 429:
            refused = found.detail
            break
        jobs.append(found.data["job"])
    assert refused.startswith("too many")
    assert len(jobs) >= limits.SEARCHES_WAITING
    states = [page.get(f"/api/plan/{job}").data["state"] for job in jobs]
    assert states.count("running") <= limits.SEARCHES
    for job in jobs:
        assert page.ask("DELETE", f"/api/plan/{job}").data["state"] == "cancelled"
    assert page.search({**DECODE_SPACE, "model": "llama3-8b", "gpus": 8})["state"] == "done"


def test_searches_that_nobody_asks_about_end_and_old_ones_are_forgotten() -> None:
    jobs = Jobs.__new__(Jobs)
    now = time.monotonic()
    left = Job("left", 1, polled=now - limits.ABANDONED_S - 1)
    polled = Job("polled", 1, polled=now)
    old = Job("old", 1, state="done", ended=now - limits.KEPT_S - 1)
    over = [
        Job(f"over {number}", 1, state="done", ended=now)
        for number in range(limits.KEPT_SEARCHES + 5)
    ]
    jobs.by_name = {job.name: job for job in (left, polled, old, *over)}
    jobs.tidy(now)
    assert (left.state, polled.state) == ("cancelled", "waiting")
    assert "old" not in jobs.by_name
    assert "over 0" not in jobs.by_name
    assert over[-1].name in jobs.by_name
    assert len(jobs.by_name) == limits.KEPT_SEARCHES + 1


def test_bad_company_disturbs_nobody(page: Client) -> None:
    def garbage() -> None:
        for content in (bytes(4096), b"GET /\r\n\r\n", b"\xff" * 10**6, b"POST / HTTP/9.9\r\n\r\n"):
            with page.socket() as connection, suppress(ConnectionError):
                connection.sendall(content)

    def leaves() -> None:
        with page.socket() as connection:
            body = json.dumps(LONG_SEARCH).encode()
            head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: "
            head += b"%d\r\n\r\n" % len(body)
            connection.sendall(b"POST /api/plan HTTP/1.1\r\n" + head + body)
            reset = b"\1\0\0\0\0\0\0\0"  # close by a reset, as a process that is killed does
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

    others = [Thread(target=each) for each in (garbage, leaves, garbage)]
    for each in others:
        each.start()
    for batch in range(1, 21):
        assert page.answer("estimate", DECODE | {"batch": batch})["time_s"] > 0
    for each in others:
        each.join()
    assert page.process.poll() is None


def test_many_at_once_are_all_answered(page: Client) -> None:
    answers: list[Any] = []

    def asks(first: int) -> None:
        answers.extend(page.answer("estimate", DECODE | {"batch": first + k}) for k in range(5))

    others = [Thread(target=asks, args=(1000 + 10 * number,)) for number in range(40)]
    for each in others:
        each.start()
    for each in others:
        each.join()
    assert len(answers) == 200
    assert len({answer["workload"]["batch"] for answer in answers}) == 200


def test_the_description_of_the_api_is_whole(page: Client) -> None:
    described = page.get("/openapi.json").data
    assert {"/api/estimate", "/api/plan/{job}", "/api/file"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert operation["summary"], path
            assert {"403", "421"} <= set(operation["responses"]), path
    fields = described["components"]["schemas"]["Ask"]["properties"]
    assert all(field["description"] for field in fields.values())
    assert described["components"]["schemas"]["Ask"]["additionalProperties"] is False


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    """Return how ``shardcost serve`` ends that cannot begin."""
    command = [sys.executable, "-m", "shardcost", "serve", "--no-open", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = serve("--port", port)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert f"--port must be one that is free on 127.0.0.1 (address already in use), got {port}" in (
        found.stderr
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--port", "x"), "--port must be a whole number, got 'x'"),
        (("--port", "70000"), "--port must be a port, 0 to 65535, got 70000"),
        (("--host", "no such host"), "--host must be an address of this machine"),
        (("--host", "192.0.2.1"), "--host must be an address of this machine, got '192.0.2.1'"),
    ],
)
def test_a_bad_address_is_told_in_one_line(words: tuple[str, ...], line: str) -> None:
    found = serve(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert line in found.stderr
    assert found.stderr.count("\n") == 1


def test_an_address_of_the_network_is_warned_of() -> None:
    command = [sys.executable, "-m", "shardcost", "serve", "--no-open", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--host", "0.0.0.0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = process.stdout.readline()
    url = urlsplit(json.loads(ready)["url"])
    assert url.hostname not in {None, "0.0.0.0"}
    with socket.create_connection((url.hostname, url.port), timeout=10):
        pass  # a browser can open it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0  # Ctrl-C is how it is meant to end
    assert out == ""
    assert err == ("shardcost: anybody who reaches 0.0.0.0 over the network can use this page\n")


def test_nothing_stays_when_the_server_ends() -> None:
    with served() as client:
        client.post("plan", LONG_SEARCH)
        workers = children_of(client.process.pid)
        assert len(workers) >= 2
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if not listed.exists():
        pytest.skip("this system does not list the children of a process")
    return [int(each) for each in listed.read_text().split()]


def test_without_its_libraries_the_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    said = run_error(capsys, "serve", "--no-open", "--port", "0")
    assert said == "shardcost: the page needs fastapi: pip install 'shardcost[web]'\n"
