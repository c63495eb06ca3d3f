"""Machines as files: template, figures by name, provenance, and files that are wrong."""

import json
import random
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import tomlkit
from tomlkit.exceptions import TOMLKitError

from shardcost import Decode, Layout, estimate
from shardcost.catalog import cluster_in_text, cluster_named, names, raw
from shardcost.catalog.figures import FIGURES, changes_of, figure_named, peak_of, value_of
from shardcost.catalog.template import file_of, template
from shardcost.cli import main
from shardcost.cluster import Cluster
from shardcost.collectives.library_time import collective_time
from shardcost.errors import BadValueError, ShardcostError, UnknownNameError
from shardcost.estimate.interval import interval_of
from shardcost.machine.libraries import default_library
from shardcost.machine.provenance import provenance_of, widening

STEP: Final = Decode(batch=16, context_tokens=1024)
ASK: Final = ("llama3-8b", "--tp", "8", "--decode", "--batch", "16", "--context-tokens", "1024")
MUTATED: Final = 500


def time_on(cluster: Cluster) -> float:
    """Return the seconds of one step of decoding on a machine."""
    return float(estimate("llama3-8b", cluster, Layout(tp=2), STEP).time_s)


def test_the_template_is_a_machine_and_has_every_figure() -> None:
    text = template()
    machine = cluster_in_text(text)
    assert time_on(machine) > 0
    lines = [line.partition("#")[0] or line.lstrip("# ") for line in text.splitlines()]
    keys = {line.partition("=")[0].strip() for line in lines}
    assert {figure.short for figure in FIGURES} <= keys


@pytest.mark.parametrize("name", names("clusters"))
def test_every_machine_survives_as_a_file(name: str) -> None:
    for network in (None, "ib_8x400g", "ib_1x400g_per_gpu"):
        known = cluster_named(name, network)
        read = cluster_in_text(file_of(known))
        for figure in (*FIGURES, *map(peak_of, known.device.peak_flop_per_s)):
            assert value_of(read, figure) == value_of(known, figure), figure.name
        assert read.device == replace(known.device, name=read.device.name)


def test_built_in_figures_have_a_source() -> None:
    for name in names("clusters"):
        content = raw("clusters", name)
        for figure in FIGURES:
            table: Any = content if not figure.table else content.get(figure.table, {})
            if figure.key in table:
                assert {"value", "source"} <= set(table[figure.key]), (name, figure.key)
            assert figure.short == figure.key or figure.short not in table


def test_plain_numbers_and_texts_with_units_are_figures() -> None:
    text = file_of(Cluster.named("h100_sxm"))
    other = text.replace('memory = "80GiB"', "memory_gib = 80").replace(
        'bandwidth = "450GB/s"', 'bandwidth = { value = 450, source = "me" }'
    )
    with pytest.raises(ShardcostError, match="names a source that"):
        cluster_in_text(other)
    other = other.replace("{ value = 450,", '{ value = "450GB/s",') + '\n[sources]\nme = "me"\n'
    one, two = cluster_in_text(text, None, "a.toml"), cluster_in_text(other)
    assert one.device.memory_bytes == two.device.memory_bytes
    assert one.tiers == two.tiers
    assert one.why("device.memory_bytes").citation == "stated in a.toml"
    assert two.why("tiers.bytes_per_s").citation == "me"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('memory = "80GiB"', "memory = 80", "a text with its unit, like 80GiB"),
        ('memory = "80GiB"', 'memory = "80GiB"\nmemory_gib = 80', "are one figure"),
        ('clock = "1980MHz"', 'clock = "1980"', "like 1980MHz"),
        ("[link]", "[[link]]", "link must be a table"),
        ("gpus = 8\n", "gpus = 0\n", "at least 1"),
        ('kind = "nvswitch"', 'kind = "ring"', "nvswitch"),
        ("[device.peak]", "[device.peaks]", "peak_dense_tflops is missing"),
        ("[host]", "[[tier]]", "unknown key tier"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(old: str, new: str, said: str) -> None:
    text = file_of(Cluster.named("h100_sxm"))
    assert old in text
    with pytest.raises(ShardcostError, match=said) as error:
        cluster_in_text(text.replace(old, new))
    assert "\n" not in str(error.value)


def test_a_file_has_its_network_and_host() -> None:
    cluster = cluster_in_text(template())
    assert cluster.network is not None
    assert collective_time("all_reduce", 2**20, cluster, 64).time_s > 0
    named = cluster_in_text('network = "ib"\n' + file_of(Cluster.named("a100_sxm")))
    assert named.network is not None
    assert named.network.nic_bytes_per_s == 25e9
    other = cluster_in_text(template(), "roce_8x200g")
    assert other.network is not None
    assert other.network.name == "roce_8x200g"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("device.memory", "96GiB", 96 * 2**30),
        ("device.memory_bandwidth", "8TB/s", 8e12),
        ("device.peak.bf16", "2PFLOP/s", 2e15),
        ("device.sms", "148", 148),
        ("device.clock", "2.1GHz", 2.1e9),
        ("device.l2", "100MiB", 100 * 2**20),
        ("device.power", "1kW", 1000),
        ("host.link", "64GB/s", 64e9),
        ("link", "900GB/s", 900e9),
        ("link.gpus", "16", 16),
        ("link.in_switch_reduction", "false", False),
        ("network.nic_rate", "800Gb/s", 100e9),
        ("network.nics_per_gpu", "1", 1),
        ("network.oversubscription", "2", 2),
        ("gpus_per_node", "4", 4),
    ],
)
def test_figures_are_set_by_name(name: str, value: str, expected: Any) -> None:
    base = Cluster.named("h100_sxm", "ib_8x400g")
    changed = base.with_figures({name: value})
    assert value_of(changed, figure_named(name)) == expected
    assert len(changes_of(changed)) in {1, 2}
    back = {each.figure.name: each.before for each in changes_of(changed) if each.before}
    assert changes_of(changed.with_figures(back)) == ()


def test_all_peaks_are_set_together() -> None:
    changed = Cluster.named("h100_sxm").with_figures({"device.peak": "1978.8TFLOP/s"})
    assert changed.device.peak("bf16") == pytest.approx(1978.8e12)
    assert changed.device.peak("fp8") == pytest.approx(2 * 1978.9e12)


def test_unknown_figures_and_units_are_refused() -> None:
    base = Cluster.named("h100_sxm")
    with pytest.raises(UnknownNameError, match="device"):
        base.with_figures({"device.colour": "red"})
    with pytest.raises(BadValueError, match="450GB/s"):
        base.with_figures({"link": "900GB"})
    with pytest.raises(BadValueError, match="name one with --network"):
        base.with_figures({"network.nic_rate": "400Gb/s"})


def test_a_changed_figure_widens_the_interval_with_its_distance() -> None:
    base = Cluster.named("h100_sxm")
    widths, waits = [], []
    for rate in ("450GB/s", "500GB/s", "900GB/s", "1.8TB/s"):
        cluster = base.with_figures({"link": rate})
        known = collective_time("all_reduce", 2.0**24, cluster, 8, library="nccl")
        widths.append(known.interval.high_s / known.time_s)
        found = interval_of(estimate("llama3-8b", cluster, Layout(tp=8), STEP))
        waits.append(found.high_s / found.low_s)
    assert widths == sorted(widths)
    assert waits == sorted(waits)
    assert len(set(widths)) == len(set(waits)) == 4
    assert widening(base) == 0


def test_provenance_says_what_is_measured_and_what_is_not() -> None:
    def standings(cluster: Cluster) -> dict[str, str]:
        return {each.what: each.standing for each in provenance_of(cluster)}

    base = Cluster.named("h100_sxm", "ib_8x400g")
    assert standings(base)["collectives"] == standings(base)["GEMM"] == "measured"
    faster = standings(base.with_figures({"device.memory_bandwidth": "8TB/s", "link": "1TB/s"}))
    assert faster["figures"] == "changed"
    assert faster["collectives"] == faster["GEMM"] == "scaled"
    assert standings(Cluster.named("gaudi3"))["collectives"] == "assumed"
    assert standings(Cluster.named("gaudi3"))["GEMM"] == "inherited"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code and what a command prints."""
    code = main(list(words))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_commands_set_and_vary_figures(capsys: pytest.CaptureFixture[str]) -> None:
    on = ("--on", "h100_sxm", "--json")
    _, usual, _ = run(capsys, "estimate", *ASK, *on)
    words = ("--set", "link=900GB/s,device.peak=2PFLOP/s", "--set", "device.memory=96GiB")
    code, text, _ = run(capsys, "estimate", *ASK, *on, *words)
    changed = json.loads(text)
    assert code == 0
    assert changed["time_s"] < json.loads(usual)["time_s"]
    assert changed["memory"]["capacity_bytes"] == 96 * 2**30
    assert changed["provenance"][0]["standing"] == "changed"
    _, text, _ = run(capsys, "estimate", *ASK, *on, "--vary", "link=450GB/s,900GB/s,1.8TB/s")
    times = [row["time_s"] for row in json.loads(text)["rows"]]
    assert times == sorted(times, reverse=True)
    asked = ("all_reduce", "--size", "1GiB", "--gpus", "8", *on, "--set", "link=900GB/s")
    _, text, _ = run(capsys, "collective", *asked)
    assert json.loads(text)["provenance"][0]["of"] == "link.bandwidth 450GB/s -> 900GB/s"
    code, _, said = run(capsys, "estimate", *ASK, *on, "--set", "link")
    assert code == 2
    assert "like link=900GB/s" in said
    code, _, said = run(capsys, "estimate", *ASK, *on, "--vary", "nothing=1,2")
    assert code == 2
    assert "link.bandwidth" in said


def test_a_machine_in_full_and_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = run(capsys, "clusters", "h100_sxm", "--template")
    assert code == 0
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('bandwidth = "450GB/s"', 'bandwidth = "900GB/s"'))
    code, text, _ = run(capsys, "clusters", str(file))
    assert code == 0
    assert "inherited" in text
    code, text, _ = run(capsys, "estimate", *ASK, "--on", str(file))
    assert code == 0
    assert "constants" in text
    code, text, _ = run(capsys, "clusters", "--template")
    assert cluster_in_text(text).name == "my_machine"


WORDS: Final = (
    "", "nan", "x" * 300, "8", "8XB/s", "-1GB/s", "1e400W", "\u202e8GB/s", "8 GB/s", "1e30TB/s",
    "0GB/s", "∞", "true", "ib_8x400g", "[]", "8GiB", "400Gb/s", "1kW",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    0, -1, 1, 10**18, 10**30, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), 0.5, True,
    False, [], [1, 2], {}, {"value": 1}, {"value": 1, "source": "none"}, [[[[[[[[]]]]]]]], *WORDS,
)  # fmt: skip


def places(content: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every key of a file."""
    found = []
    for key, value in content.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


def mutated(text: str, dice: random.Random) -> str:
    """Return a hardware file with one to three things wrong in it."""
    for _ in range(dice.randint(1, 3)):
        text = dice.choice(MUTATIONS)(text, dice)
    return text


def _key(text: str, dice: random.Random) -> tuple[Any, Any, str] | None:
    try:
        document: Any = tomlkit.parse(text)
    except (ValueError, TOMLKitError):
        return None
    known = places(document.unwrap())
    if not known:
        return None
    *tables, key = dice.choice(known)
    table = document
    for name in tables:
        table = table[name]
    return document, table, key


def delete(text: str, dice: random.Random) -> str:
    """Delete a key."""
    found = _key(text, dice)
    if found is None:
        return text
    document, table, key = found
    del table[key]
    return tomlkit.dumps(document)


def other_value(text: str, dice: random.Random) -> str:
    """Give a key another value."""
    found = _key(text, dice)
    if found is None:
        return text
    document, table, key = found
    table[key] = dice.choice(VALUES)
    return tomlkit.dumps(document)


def renamed(text: str, dice: random.Random) -> str:
    """Give a value another key."""
    found = _key(text, dice)
    if found is None:
        return text
    document, table, key = found
    value = table.pop(key)
    table["".join(dice.choices(string.printable[:94], k=4))] = value
    return tomlkit.dumps(document)


def truncated(text: str, dice: random.Random) -> str:
    """Cut the end off."""
    return text[: dice.randrange(len(text) + 1)]


def doubled(text: str, dice: random.Random) -> str:
    """Repeat some lines."""
    lines = text.splitlines(keepends=True)
    start = dice.randrange(len(lines) + 1)
    return text + "".join(lines[start : start + dice.randint(1, 8)])


def garbled(text: str, dice: random.Random) -> str:
    """Replace some characters."""
    letters = list(text)
    for _ in range(dice.randint(1, 5)):
        if letters:
            letters[dice.randrange(len(letters))] = dice.choice("\"'=[]{}#\n\t\x00é漢\u202e0-.")
    return "".join(letters)


MUTATIONS: Final[tuple[Callable[[str, random.Random], str], ...]] = (
    delete, other_value, other_value, other_value, renamed, truncated, doubled, garbled,
)  # fmt: skip


def test_wrong_hardware_files_estimate_or_give_one_line() -> None:
    dice = random.Random(20)
    machines = (cluster_named(name, "ib_8x400g") for name in ("h100_sxm", "gaudi3", "rtx4090"))
    files = [template(), *map(file_of, machines)]
    said = [outcome(mutated(dice.choice(files), dice)) for _ in range(MUTATED)]
    refused = [line for line in said if line]
    assert MUTATED / 4 < len(refused) < MUTATED
    assert not [line for line in refused if "\n" in line or not 10 < len(line) < 500]


def outcome(text: str) -> str:
    """Return what is wrong with a file; nothing where its machine runs a step and a collective."""
    try:
        cluster = cluster_in_text(text)
        assert time_on(cluster) > 0
        library = default_library(cluster)
        assert collective_time("all_reduce", 2**20, cluster, 2, library=library).time_s > 0
    except ShardcostError as error:
        return str(error)
    return ""


def test_wrong_hardware_files_by_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, file = random.Random(7), tmp_path / "mine.toml"
    codes = set()
    for _ in range(12):
        change = dice.choice(MUTATIONS)
        file.write_text(change(template(), dice), encoding="utf-8")
        code, _, said = run(capsys, "estimate", *ASK, "--on", str(file))
        codes.add(code)
        assert code in {0, 2, 3}
        assert (said.count("\n") == 1) == (code == 2)
    assert codes >= {0, 2}
