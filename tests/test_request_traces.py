"""Recorded requests: the three forms, and files that are none of them or damaged."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from shardcost import FormatError
from shardcost.formats import request_traces
from shardcost.formats.request_traces import RequestTrace, of_text, read

TABLE = """\
arrival_s,prompt_tokens,output_tokens,prefix_hashes
10.5,1024,20,7 8
11,600,5,7
12.25,90,1,
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00.6805900,879,55
"""
MOONCAKE = "\n".join(
    json.dumps(each)
    for each in (
        {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 5]},
        {"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 6]},
    )
)
SAMPLES = {"table": TABLE, "azure": AZURE, "mooncake": MOONCAKE}


def test_the_own_table() -> None:
    trace = of_text(TABLE)
    assert trace.arrival_s.tolist() == [0.0, 0.5, 1.75]
    assert trace.prompt_tokens.tolist() == [1024, 600, 90]
    assert trace.output_tokens.tolist() == [20, 5, 1]
    assert trace.prefixes == [(7, 8), (7,), ()]
    assert trace.prefix_block_tokens == 512
    assert (len(trace), trace.kind, trace.unread) == (3, "request-trace", ())


def test_azures_columns_have_clock_times() -> None:
    trace = of_text(AZURE)
    assert trace.arrival_s == pytest.approx([0.0, 4.314579, 14.0], abs=1e-5)
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.prefixes is None
    zoned = AZURE.replace("46.6805900", "46.6805900+00:00")
    assert of_text(zoned).arrival_s == pytest.approx(trace.arrival_s)


def test_mooncakes_lines_have_milliseconds_and_blocks() -> None:
    trace = of_text(MOONCAKE)
    assert trace.arrival_s == pytest.approx([0.0, 3.053])
    assert trace.prompt_tokens.tolist() == [6955, 6472]
    assert trace.output_tokens.tolist() == [52, 26]
    assert trace.prefixes == [(46, 47, 5), (46, 47, 6)]


def test_columns_may_be_in_any_order_and_beside_others() -> None:
    text = "Output_Tokens,who,ARRIVAL_S,prompt_tokens\n5,me,1,100\n\n6,you,3,200\n"
    trace = of_text(text)
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.output_tokens.tolist() == [5, 6]


def test_requests_are_put_in_the_order_of_their_arrival() -> None:
    trace = of_text("arrival_s,prompt_tokens,output_tokens,prefix_hashes\n5,1,9,4\n2,2,8,\n5,3,7,1")
    assert trace.arrival_s.tolist() == [0.0, 3.0, 3.0]
    assert trace.prompt_tokens.tolist() == [2, 1, 3]
    assert trace.prefixes == [(), (4,), (1,)]


def test_requests_without_tokens_are_passed_over_and_counted() -> None:
    trace = of_text("arrival_s,prompt_tokens,output_tokens\n0,10,0\n1,10,5\n2,0,5\n")
    assert trace.output_tokens.tolist() == [5]
    (unread,) = trace.unread
    assert (unread.count, unread.first_line) == (2, 2)
    assert unread.reason == "requests without a prompt or an output"


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES)
def test_files_may_be_gzipped_have_a_mark_and_other_ends_of_lines(
    tmp_path: Path, text: str
) -> None:
    plain = of_text(text)
    for name, content in {
        "a.csv": text.encode(),
        "b.csv.gz": gzip.compress(text.encode()),
        "c.csv": b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        trace = read(tmp_path / name)
        assert trace.arrival_s.tolist() == plain.arrival_s.tolist()
        assert trace.prefixes == plain.prefixes
        assert trace.file == str(tmp_path / name)


HEAD = "arrival_s,prompt_tokens,output_tokens\n"
PREFIXED = "arrival_s,prompt_tokens,output_tokens,prefix_hashes\n"
LINE = '{"timestamp": 1, "input_length": 5, "output_length": 3}\n'
REFUSED = {
    "": "begins with ''; requests have the columns arrival_s,prompt_tokens,output_tokens or",
    "a,b\n1,2\n": "begins with 'a,b'; requests have the columns",
    HEAD: "has no requests",
    f"{HEAD}0,10,0\n": "has no requests",
    f"{HEAD}0,10\n": "line 2 has 2 cells, its header 3",
    f"{HEAD}0,10,5,6\n": "line 2 has 4 cells, its header 3",
    f"{HEAD}0,10,5\nsoon,10,5\n": "line 3, arrival_s must be seconds of at least 0, got 'soon'",
    f"{HEAD}-1,10,5\n": "line 2, arrival_s must be seconds of at least 0, got '-1'",
    f"{HEAD}nan,10,5\n": "line 2, arrival_s must be seconds of at least 0, got 'nan'",
    f"{HEAD}1e99,10,5\n": "line 2, arrival_s must be seconds of at least 0, got '1e99'",
    f"{HEAD}0,-10,5\n": "line 2, prompt_tokens must be a whole number from 0 to 100000000",
    f"{HEAD}0,10.5,5\n": "line 2, prompt_tokens must be a whole number",
    f"{HEAD}0,10,999999999999\n": "line 2, output_tokens must be a whole number from 0",
    f"{HEAD}0,10,\n": "line 2, output_tokens must be a whole number from 0",
    f"{HEAD}0,٣,5\n": "line 2, prompt_tokens must be a whole number from 0",
    f"{PREFIXED}0,10,5,a b\n": "line 2, prefix_hashes must be whole numbers of blocks, got 'a b'",
    f"{PREFIXED}0,10,5,-1\n": "line 2, prefix_hashes must be whole numbers of blocks",
    'arrival_s,prompt_tokens,output_tokens\n0,"10,5\n': "is no CSV",
    "arrival_s,arrival_s,prompt_tokens,output_tokens\n0,0,1,1\n": "has the column arrival_s twice",
    AZURE.replace("2023-11-16 18:15:50", "yesterday"): "line 3, timestamp must be a date and time",
    AZURE.replace("2023", "1823"): "line 2, timestamp must be a date and time from 1970 on",
    f"{LINE}{{": "line 2 is not JSON",
    f"{LINE}[]\n": "line 2 holds list, not a JSON object",
    LINE.replace("output_length", "out"): "line 1 has no output_length",
    LINE.replace("5", "-5"): "line 1, input_length must be a whole number from 0",
    LINE.replace("5", "5.0"): "line 1, input_length must be a whole number from 0",
    LINE.replace("5", "true"): "line 1, input_length must be a whole number from 0",
    LINE.replace("5", "NaN"): "line 1 holds NaN, which is not JSON",
    LINE.replace(": 1,", ": -1,"): "line 1, timestamp must be milliseconds of at least 0, got -1",
    LINE.replace(": 1,", ': "now",'): "line 1, timestamp must be milliseconds of at least 0",
    LINE.replace("3}", '3, "hash_ids": 7}'): "line 1, hash_ids must be numbers of at most",
    LINE.replace("3}", '3, "hash_ids": [1, "a"]}'): "line 1, hash_ids must be whole numbers",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_cannot_be_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(FormatError) as error:
        of_text(text, "requests.csv")
    message = str(error.value)
    assert message.startswith("requests.csv: ")
    assert said in message
    assert "\n" not in message


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_traces, "MOST_REQUESTS", 2)
    with pytest.raises(FormatError, match="has more than 2 requests"):
        of_text(TABLE)
    monkeypatch.setattr(request_traces, "MOST_BYTES", 2**20)
    file = tmp_path / "large.csv"
    file.write_text(HEAD + "0,1,1\n" * 2**18)
    with pytest.raises(FormatError, match="is larger than 1 MiB"):
        read(file)
    with pytest.raises(FormatError, match="is larger than 1 MiB"):
        of_text(file.read_text())
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="is not UTF-8 text"):
        read(file)
    with pytest.raises(FormatError, match="cannot be read"):
        read(tmp_path)


def test_damaged_files_are_read_or_refused_and_never_more() -> None:
    """Bytes changed, taken out and doubled: a trace in order, or the one kind of error."""
    rng = random.Random(7)
    for text in SAMPLES.values():
        for _ in range(400):
            damaged = list(text)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(damaged))
                damaged[place : place + rng.randint(0, 3)] = rng.choice(
                    ["", "-", "9", "\n", ",", '"', "{", "\x00", "e", "\u0663", " ", "99999999999"]
                )
            try:
                trace = of_text("".join(damaged))
            except FormatError:
                continue
            _check(trace)


def _check(trace: RequestTrace) -> None:
    assert len(trace) >= 1
    assert trace.arrival_s[0] == 0
    assert (trace.arrival_s[1:] >= trace.arrival_s[:-1]).all()
    assert (trace.prompt_tokens >= 1).all()
    assert (trace.output_tokens >= 1).all()
    assert trace.prefixes is None or len(trace.prefixes) == len(trace)
