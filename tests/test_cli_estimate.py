"""``shardcost estimate``: one layout, one option that varies, and how both refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import run_error, run_json, run_text

import shardcost
from shardcost import BadTypeError, Decode, Layout, Prefill, Train, cli, estimate
from shardcost.estimate.explain import explanation
from shardcost.estimate.scaling import Row, Scaling
from shardcost.memory.footprint import KINDS
from shardcost.report.describe import plain
from shardcost.report.estimate import as_text
from shardcost.report.estimate_data import advice_as_data, as_data
from shardcost.report.scaling import as_data as scaling_as_data
from shardcost.search.advice import advice
from shardcost.units import format_energy

TRAIN = (
    "estimate llama3-70b --on h100_sxm --network ib_8x400g --gpus 64 --tp 8 --pp 2 --train"
    " --batch 512 --sequence-length 4096 --micro-batch 1"
).split()
PREFILL = (
    "estimate llama3-70b --on h100_sxm --tp 8 --prefill --batch 2 --prompt-tokens 4096".split()
)
DECODE = (
    "estimate llama3-70b --on h100_sxm --gpus 8 --tp 8 --decode --batch 64 --context-tokens 4096"
).split()
MOE = (
    "estimate mixtral-8x7b --on h100_sxm --network ib_8x400g --gpus 32 --tp 2 --ep 8 --pp 2"
    " --train --batch 64 --sequence-length 4096 --zero 1 --recompute full"
).split()
SMALL = "estimate llama3-8b --on h100_sxm --decode --batch 8 --context-tokens 1024".split()


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def numbers(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [found for each in data.values() for found in numbers(each)]
    if isinstance(data, list):
        return [found for each in data for found in numbers(each)]
    return [data]


@pytest.mark.parametrize("words", [TRAIN, PREFILL, DECODE, MOE], ids=lambda words: words[1])
def test_the_document_keeps_the_contract(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    data = run_json(capsys, *words)
    assert data["time_s"] > 0
    assert data["memory_bytes"] == data["memory"]["peak_bytes"]
    assert sum(data["parts"].values()) == pytest.approx(data["time_s"])
    assert sum(data["memory"]["by_kind"].values()) == pytest.approx(data["memory_bytes"])
    assert set(data["memory"]["by_kind"]) == set(KINDS)
    assert sum(data["compute"]["by_kind"].values()) == pytest.approx(data["compute"]["total_s"])
    comm = data["comm"]
    assert comm["share"] == pytest.approx(comm["exposed_s"] / data["time_s"])
    for name in ("total_s", "exposed_s", "hidden_s", "bytes"):
        together = sum(group[name] for group in comm["by_group"].values())
        assert together == pytest.approx(comm[name]), name
    links = sum(link["bytes"] for link in comm["by_link"].values())
    assert links == pytest.approx(comm["bytes"])
    assert all(0 <= link["utilisation"] <= 1 for link in comm["by_link"].values())
    assert 0 < data["mfu"] <= data["mfu_full_attention"]
    assert data["tokens_per_s_per_gpu"] * data["gpus"] == pytest.approx(data["tokens_per_s"])
    assert all(isinstance(each, str) for each in data["warnings"])
    assert {type(each) for each in numbers(data)} <= {int, float, str, bool, type(None)}


def test_the_document_says_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *MOE)
    assert (data["model"], data["cluster"], data["network"]) == (
        "mixtral-8x7b",
        "h100_sxm",
        "ib_8x400g",
    )
    assert data["software"] == "megatron_core"
    layout = data["layout"]
    assert (layout["tp"], layout["ep"], layout["pp"], layout["dp"]) == (2, 8, 2, 8)
    assert (layout["zero"], layout["recompute"]) == (1, "full")
    assert data["workload"]["phase"] == "train"
    assert data["workload"]["global_batch"] == 64
    assert data["hfu"] > data["mfu"]
    assert set(data["comm"]["by_group"]) == {"tp", "ep", "dp", "pp"}
    assert set(data["comm"]["ratios_per_layer"]) == {"forward", "backward"}
    assert set(data["memory"]["stages"]) == {"first", "last"}


def test_figures_stand_where_they_mean_something(capsys: pytest.CaptureFixture[str]) -> None:
    train, prefill, decode = (run_json(capsys, *words) for words in (TRAIN, PREFILL, DECODE))
    assert (train["ttft_s"], train["tpot_s"], train["tokens_per_s_per_user"]) == (None, None, None)
    assert prefill["ttft_s"] == prefill["time_s"]
    assert prefill["tpot_s"] is None
    assert decode["tpot_s"] == decode["time_s"]
    assert decode["tokens_per_s_per_user"] == pytest.approx(1 / decode["tpot_s"])
    assert decode["energy_j"] == pytest.approx(700 * 8 * decode["time_s"])


def test_the_command_line_is_the_function(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimate("llama3-70b", "h100_sxm", Layout(tp=8), Decode(batch=64, context_tokens=4096))
    assert json.loads(json.dumps(as_data(found))) == run_json(capsys, *DECODE)
    assert as_text(found) + "\n" == run_text(capsys, *DECODE)
    advised = advice(found.model, found.cluster, found.layout, found.workload)
    assert as_text(found, advice=advised) + "\n" == run_text(capsys, *DECODE, "--advise")
    document = run_json(capsys, *DECODE, "--advise")["advice"]
    assert document == json.loads(json.dumps(advice_as_data(advised)))


def test_options_reach_the_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        *"estimate llama3-8b --on h100_sxm --network ib_8x400g --tp 2 --cp 2 --pp 2 --dp 4".split(),
        *"--virtual-stages 2 --schedule interleaved --sequence-parallel --micro-batch 2".split(),
        *"--zero 3".split(),
        *"--shard-degree 4 --context-scheme ulysses --order tp-cp-pp-dp".split(),
        *"--train --batch 64 --sequence-length 2048 --gradient-dtype bf16".split(),
        *"--optimizer sgd --document-tokens 512 --software torchtitan".split(),
    )
    data = run_json(capsys, *words)
    layout = data["layout"]
    assert layout["sequence_parallel"] is True
    assert (layout["virtual_stages"], layout["schedule"]) == (2, "interleaved")
    assert (layout["shard_degree"], layout["context_scheme"]) == (4, "ulysses")
    assert layout["order"] == "tp-cp-pp-dp"
    assert data["workload"]["optimizer"] == "sgd"
    assert data["workload"]["gradient_dtype"] == "bf16"
    assert data["workload"]["document_tokens"] == 512
    assert data["software"] == "torchtitan"
    text = " ".join(run_text(capsys, *words).split())
    for said in ("sequence parallel", "ZeRO 3", "CP by ulysses", "ZeRO over"):
        assert said in text
    spread = run_json(capsys, *MOE, "--imbalance", "1.5")
    assert spread["layout"]["imbalance"] == 1.5
    served = run_json(capsys, *PREFILL, "--cached-tokens", "512", "--cache-dtype", "fp8")
    assert served["workload"]["cached_tokens"] == 512
    assert served["workload"]["cache_dtype"] == "fp8"


def test_adapters_train_less(capsys: pytest.CaptureFixture[str]) -> None:
    whole, adapters = run_json(capsys, *TRAIN), run_json(capsys, *TRAIN, "--adapters")
    assert adapters["memory_bytes"] < whole["memory_bytes"]
    assert adapters["time_s"] < whole["time_s"]


def test_gpus_fix_what_is_left_of_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, *TRAIN)["layout"]["dp"] == 4
    assert run_json(capsys, *SMALL, "--tp", "2", "--dp", "4")["gpus"] == 8
    assert run_json(capsys, *SMALL)["gpus"] == 1


@pytest.mark.parametrize("words", [TRAIN, PREFILL, DECODE, MOE], ids=lambda words: words[1])
@pytest.mark.parametrize("further", [(), ("--explain",)])
def test_text_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], words: list[str], further: tuple[str, ...]
) -> None:
    lines = run_text(capsys, *words, *further).splitlines()
    assert max(map(len, lines)) <= 80
    report = re.split("\n\n(?:Warning: |Note: |[0-9]+ further note)", "\n".join(lines), maxsplit=1)[
        0
    ]
    assert len(report.splitlines()) <= 34
    assert further or len(lines) <= 42


def test_a_report_names_the_main_figures(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text(capsys, *TRAIN)
    for said in (
        "Training llama3-70b on 64 x h100_sxm (ib_8x400g), tp8pp2dp4\n  megatron_core, ",
        "tokens/s/GPU",
        "MFU",
        "HFU",
        "counting full attention",
        "bubble",
        "TP communication",
        "host and overhead",
        "network",
        "first stage",
    ):
        assert said in text
    assert "tokens/s/user" in run_text(capsys, *DECODE)
    assert "TTFT" in run_text(capsys, *PREFILL)
    assert "step" in run_text(capsys, *SMALL, "--new-tokens", "4")
    alone = run_text(capsys, *SMALL)
    assert "communication" not in alone
    assert "links" not in alone


def test_what_does_not_fit_is_priced_and_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate llama3-405b --on h100_sxm --decode --batch 1 --context-tokens 128".split()
    data = run_json(capsys, *words)
    assert not data["memory"]["fits"]
    assert data["memory"]["reason"] in data["warnings"]
    assert "Warning: needs" in run_text(capsys, *words)


def test_a_model_file_brings_its_caveats(
    capsys: pytest.CaptureFixture[str], tiny_config: Callable[..., Path]
) -> None:
    folder = tiny_config()
    further = "--on h100_sxm --tp 4 --prefill --batch 1 --prompt-tokens 256".split()
    by_file = run_json(capsys, "estimate", folder / "config.json", *further)
    by_folder = run_json(capsys, "estimate", folder, *further)
    assert by_file["time_s"] == by_folder["time_s"] > 0
    tiny_config(hidden_size=1000)
    assert "1000" in run_error(capsys, "estimate", str(folder), *further)


BAD = {
    "heads do not divide": ([*SMALL, "--tp", "3"], "tp does not divide 32 heads"),
    "too few gpus": ([*TRAIN, "--dp", "2"], "tp x cp x pp x dp = 8 x 1 x 2 x 2 = 32, got 64"),
    "gpus do not divide": ([*TRAIN, "--pp", "3"], "a multiple of tp x cp x pp = 8 x 1 x 3 = 24"),
    "micro-batch": ([*TRAIN, "--micro-batch", "3"], "does not divide the batch of 512"),
    "experts": ([*MOE, "--ep", "16"], "ep does not divide 8 experts"),
    "sequence": (
        [*TRAIN[:-2], *"--sequence-length 4097 --cp 2 --dp 2".split()],
        "cp does not divide the sequence of 4097",
    ),
    "too many stages": ([*SMALL, "--pp", "64"], "exceeds"),
    "no network": ([*SMALL, "--tp", "16"], "name a network"),
    "virtual_stages": (
        [*TRAIN, *"--virtual-stages 2 --pp 1".split()],
        "virtual stages need pp above 1",
    ),
    "model": (["estimate", "llama3-7b", *SMALL[2:]], "unknown model 'llama3-7b'"),
    "cluster": ([*SMALL, "--on", "h10"], "unknown cluster 'h10'"),
    "no cluster": (["estimate", "llama3-8b", *SMALL[4:]], "missing --on"),
    "network": ([*SMALL, "--network", "wifi"], "unknown network 'wifi'"),
    "software": ([*SMALL, "--software", "abacus"], "unknown software 'abacus'"),
    "format": ([*SMALL, "--dtype", "bf17"], "'bf17'"),
    "device without format": (
        ["estimate", "llama3-8b", "--on", "v100_dgx2", *TRAIN[4:], "--dtype", "fp8"],
        "number format of NVIDIA V100",
    ),
    "zero": ([*TRAIN, "--zero", "4"], "a ZeRO stage from 0 to 3, got 4"),
    "schedule": ([*TRAIN, "--schedule", "2f2b"], "unknown --schedule '2f2b'"),
    "degree of 0": ([*SMALL, "--tp", "0"], "--tp must be a whole number of at least 1, got 0"),
    "degree in words": ([*SMALL, "--tp", "two"], "--tp must be a whole number, got 'two'"),
    "gpus of 0": ([*SMALL, "--gpus", "0"], "--gpus must be a whole number of at least 1, got 0"),
    "negative": ([*SMALL, "--imbalance", "-1"], "imbalance must be a finite number above 0"),
    "two kinds": ([*SMALL, "--train"], "not allowed with"),
    "no kind": (SMALL[:4], "--train --prefill --decode is required"),
    "no sizes": ([*SMALL[:4], "--train"], "--train needs --batch and --sequence-length"),
    "size of another kind": (
        [*SMALL, "--prompt-tokens", "8"],
        "--prompt-tokens is for --prefill, not --decode",
    ),
    "format of another kind": (
        [*TRAIN, "--cache-dtype", "fp8"],
        "--cache-dtype is for --prefill and --decode, not --train",
    ),
    "adapters of another kind": ([*SMALL, "--adapters"], "--adapters is for --train"),
    "vary without values": ([*SMALL, "--vary", "tp"], "a name and values, like tp=1,2,4,8"),
    "vary with a gap": ([*SMALL, "--vary", "tp=1,,2"], "none of them empty"),
    "vary of what is not": ([*SMALL, "--vary", "colour=1"], "unknown name in --vary 'colour'"),
    "vary of another kind": ([*SMALL, "--vary", "prompt-tokens=1"], "unknown name in --vary"),
    "vary in words": ([*SMALL, "--vary", "tp=one"], "--tp must be a whole number, got 'one'"),
    "vary explained": ([*SMALL, "--vary", "tp=1", "--explain"], "exclude each other"),
    "vary advised": ([*SMALL, "--vary", "tp=1", "--advise"], "exclude each other"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in run_error(capsys, *words)


def test_a_table_over_tensor_parallelism(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--vary", "tp=1,2,3,4,8"]
    data = run_json(capsys, *words)
    rows = data["rows"]
    assert [row["value"] for row in rows] == ["1", "2", "3", "4", "8"]
    assert [row["feasible"] for row in rows] == [True, True, False, True, True]
    assert "3" in rows[2]["reason"]
    possible = [row for row in rows if row["possible"]]
    assert [row["gpus"] for row in possible] == [1, 2, 4, 8]
    assert possible[0]["efficiency"] == 1.0
    for row in possible:
        ratio = row["tokens_per_s_per_gpu"] / possible[0]["tokens_per_s_per_gpu"]
        assert row["efficiency"] == pytest.approx(ratio)
    best = min(possible, key=lambda row: row["time_s"])
    assert data["crossover"]["fastest"] == best["value"]
    single = run_json(capsys, *SMALL, "--tp", "4")
    assert possible[2]["time_s"] == single["time_s"]
    text = run_text(capsys, *words)
    assert max(map(len, text.splitlines())) <= 80
    assert "impossible" in text
    assert "Summary: " in text


def test_data_parallelism_follows_where_gpus_are_fixed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = run_json(capsys, *SMALL, "--gpus", "8", "--vary", "tp=1,2,8")["rows"]
    assert [row["gpus"] for row in rows] == [8, 8, 8]
    assert [row["layout"] for row in rows] == ["dp8", "tp2dp4", "tp8"]


@pytest.mark.parametrize(
    ("varied", "count"),
    [("batch=1,16", 2), ("--context-tokens=128,4096", 2), ("on=a100_sxm,h100_sxm", 2)],
)
def test_any_option_may_vary(capsys: pytest.CaptureFixture[str], varied: str, count: int) -> None:
    data = run_json(capsys, *SMALL, f"--vary={varied}")
    assert len(data["rows"]) == count
    assert all(row["feasible"] for row in data["rows"])


def test_nothing_feasible_is_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    large = "estimate llama3-405b --on h100_sxm --decode --batch 1 --context-tokens 9".split()
    for words in ([*SMALL, "--vary", "tp=3,5"], [*large, "--vary", "tp=1,2"]):
        assert cli.main(words) == 3
        out, err = capsys.readouterr()
        assert "tp" in out
        assert err == "shardcost: no value of tp is feasible, see the reasons\n"
        assert cli.main([*words, "--json"]) == 3
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert all(row["reason"] and not row["feasible"] for row in rows)


class Found:
    """As much of an estimate as a crossover asks for."""

    def __init__(self, time_s: float, comm_share: float, per_gpu: float) -> None:
        self.time_s, self.comm_share, self.tokens_per_s_per_gpu = time_s, comm_share, per_gpu
        self.memory = self
        self.cluster = self
        self.device = None

    def fits(self, _: object) -> bool:
        """Return that it fits."""
        return True


def scaling(*figures: tuple[float, float, float]) -> Scaling:
    rows = [Row(str(2**i), Found(*each)) for i, each in enumerate(figures)]  # type: ignore[arg-type]
    return Scaling("tp", tuple(rows), "decode")


def test_names_that_vary_are_in_no_order(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "--tp", "1", "--vary", "on=b200_sxm,a100_sxm")
    summary = run_text(capsys, *words).partition("Summary: ")[2].partition(".\n")[0]
    assert summary == "most throughput per GPU: on b200_sxm; communication below 50 %"


def test_crossovers_hold_from_some_value_on() -> None:
    found = scaling((8, 0.1, 1.0), (5, 0.6, 0.7), (4, 0.4, 0.9), (5, 0.6, 0.5), (6, 0.7, 0.3))
    assert found.crossover() == {
        "communication_above_half": "8",
        "efficiency_below_80_pct": "8",
        "fastest": "4",
        "most_tokens_per_s_per_gpu": "1",
    }
    calm = scaling((8, 0.1, 1.0), (4, 0.2, 0.95))
    assert calm.crossover()["communication_above_half"] is None
    assert calm.crossover()["fastest"] == "2"
    assert Scaling("tp", (Row("3", None, "no"),), "decode").crossover()["fastest"] is None
    nothing = scaling_as_data(Scaling("tp", (Row("3", None, "no"),), "decode"))
    assert nothing["rows"] == [{"value": "3", "possible": False, "feasible": False, "reason": "no"}]


@pytest.mark.parametrize(
    ("layout", "workload"),
    [
        (Layout(tp=8), Decode(batch=64, context_tokens=4096)),
        (Layout(tp=4, pp=2), Prefill(batch=1, prompt_tokens=4096)),
        (Layout(tp=4, pp=2), Train(global_batch=16, sequence_length=2048)),
        (Layout(tp=8), Train(global_batch=16, sequence_length=2048)),
        (
            Layout(tp=2, pp=4, virtual_stages=2, schedule="interleaved"),
            Train(global_batch=16, sequence_length=2048),
        ),
        (Layout(tp=2, pp=4, schedule="zero_bubble"), Train(global_batch=16, sequence_length=2048)),
        (Layout(), Prefill(batch=1, prompt_tokens=512)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_explanation_names_formulas_values_sources_and_errors(
    layout: Layout, workload: Any
) -> None:
    found = estimate("llama3-70b", "h100_sxm", layout, workload)
    text = explanation(found)
    assert text == found.explain()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert 20 <= len(lines) <= 60
    whole = " ".join(text.split())
    for label in ("Time", "Layer", "Largest GEMM", "Attention", "Elementwise", "Memory", "MFU"):
        assert f"{label}: " in whole
    assert "FLOP / (time x GPUs x peak)" in whole
    assert "median error" in whole
    assert ("Heaviest collective: " in whole) == (layout.tp > 1)
    assert ("Bubble: pipeline - compute = " in whole) == (
        layout.pp > 1 and workload.phase == "train"
    )
    assert max(map(len, explanation(found, 60).splitlines())) <= 60


def test_only_one_layout_can_be_explained() -> None:
    found = estimate(
        "llama3-8b", "h100_sxm", Layout(tp=np.array([1, 2])), Prefill(batch=1, prompt_tokens=512)
    )
    with pytest.raises(BadTypeError, match="one layout"):
        explanation(found)


def test_the_explanation_comes_with_the_document_if_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = run_json(capsys, *SMALL, "--explain")
    assert any(line.startswith("Largest GEMM: ") for line in data["explanation"])
    assert "explanation" not in run_json(capsys, *SMALL)


def test_hidden_communication_is_never_negative() -> None:
    found = estimate(
        "llama3-70b", "h100_sxm", Layout(tp=8), Train(global_batch=8, sequence_length=4096)
    )
    assert 0 < found.hidden_s.get("tp", 0.0) < found.comm_s["tp"]
    assert found.hidden_s.get("no group", 0.0) == 0


def test_plain_data_has_no_numpy() -> None:
    data = plain({"a": np.float64(1.5), "b": [np.int64(2), (np.bool_(True),)]})
    assert data == {"a": 1.5, "b": [2, [True]]}
    assert type(data["a"]) is float


@pytest.mark.parametrize(
    ("joules", "said"), [(5.0, "5 J"), (1500.0, "1.5 kJ"), (2.5e6, "2.5 MJ"), (3e12, "3000 GJ")]
)
def test_energies_have_units(joules: float, said: str) -> None:
    assert format_energy(joules) == said


def test_the_function_is_not_hidden_by_the_room_of_its_name() -> None:
    import importlib

    importlib.import_module("shardcost.estimate.step")
    assert shardcost.estimate is estimate
    assert callable(estimate)
