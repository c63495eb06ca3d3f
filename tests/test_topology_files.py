"""Topology files: read whatever they hold, and say what it means."""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardcost.cluster import CUBE_MESH, Cluster
from shardcost.errors import FormatError, ShardcostError
from shardcost.formats import nccl_xml, nvidia_smi
from shardcost.formats.nccl_xml import NcclGraphs, NcclTopology
from shardcost.formats.nvidia_smi import DeviceMatrix
from shardcost.inspect.topology import (
    GraphInspection,
    TopologyInspection,
    inspected,
)
from shardcost.report.inspect_topology import as_data, as_text

Write = Callable[[str], Path]

_LEGEND = """
Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "topology"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def matrix(
    links: list[list[str]],
    nic_links: list[list[str]] | None = None,
    numa: list[str] | None = None,
    names: list[str] | None = None,
) -> str:
    """Return what nvidia-smi topo -m prints, with tabs as it does."""
    gpus = [f"GPU{i}" for i in range(len(links))]
    ways = nic_links or [[] for _ in gpus]
    nics = [f"NIC{i}" for i in range(len(ways[0]))]
    head = "\t".join(["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    domains = numa or ["0"] * len(gpus)
    rows = [
        "\t".join([gpu, *row, *way, "0-55,112-167", f"{domain}\t", "N/A"])
        for gpu, row, way, domain in zip(gpus, links, ways, domains, strict=True)
    ]
    for place, nic in enumerate(nics):
        among = [" X " if other == nic else "SYS" for other in nics]
        rows.append("\t".join([nic, *(way[place] for way in ways), *among, "", ""]))
    called = names or [f"mlx5_{i}" for i in range(len(nics))]
    listed = "".join(f"  {nic}: {name}\n" for nic, name in zip(nics, called, strict=True))
    return "\n".join([head, *rows]) + "\n" + _LEGEND + f"\nNIC Legend:\n\n{listed}"


def all_pairs(gpus: int, word: str) -> list[list[str]]:
    return [[" X " if i == j else word for j in range(gpus)] for i in range(gpus)]


def dgx_h100() -> str:
    """Eight GPUs behind a switch, a card beside each, and two for storage."""
    numa = ["0"] * 4 + ["1"] * 4
    ways = [
        ["PIX" if i == j else "NODE" if i // 4 == j // 4 else "SYS" for j in range(8)]
        + ["NODE" if i // 4 == 0 else "SYS", "NODE" if i // 4 == 1 else "SYS"]
        for i in range(8)
    ]
    return matrix(all_pairs(8, "NV18"), ways, numa)


def dgx1() -> str:
    def word(i: int, j: int) -> str:
        if i == j:
            return " X "
        cables = CUBE_MESH.get((min(i, j), max(i, j)))
        return f"NV{cables}" if cables else ("PIX" if i // 4 == j // 4 else "SYS")

    return matrix([[word(i, j) for j in range(8)] for i in range(8)])


def pcie_box() -> str:
    """Two sockets, on each two PCIe switches with two GPUs."""

    def word(i: int, j: int) -> str:
        if i == j:
            return " X "
        return "PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS"

    links = [[word(i, j) for j in range(8)] for i in range(8)]
    return matrix(links, [["PIX" if i < 2 else "SYS"] for i in range(8)], ["0"] * 4 + ["1"] * 4)


def xml(
    gpus: int = 8,
    sm: int = 90,
    nvlink: str = '<nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>',
    lame: dict[int, str] | None = None,
    speed: str = "400000",
    width: str = "16",
) -> str:
    """Return a dump of NCCL: two CPUs, a switch with a GPU and a card for each GPU."""
    parts = ['<system version="1">']
    for cpu in range(2):
        parts.append(f'<cpu host_hash="0x1" numaid="{cpu}" arch="x86_64" vendor="GenuineIntel">')
        for gpu in range(cpu * gpus // 2, (cpu + 1) * gpus // 2):
            links = (lame or {}).get(gpu, nvlink)
            pci = f'link_speed="32.0 GT/s PCIe" link_width="{width}"'
            parts.append(
                f'<pci busid="0000:{gpu}0:00.0" class="0x060400" {pci}>\n'
                f'<pci busid="0000:{gpu}1:00.0" class="0x030200" {pci}>'
                f'<gpu dev="{gpu}" sm="{sm}" rank="{gpu}" gdr="1">{links}</gpu></pci>\n'
                f'<pci busid="0000:{gpu}2:00.0" class="0x020700" {pci}><nic>'
                f'<net name="mlx5_{gpu}" dev="{gpu}" speed="{speed}" port="1" gdr="1"/>'
                "</nic></pci>\n</pci>"
            )
        parts.append("</cpu>")
    return "\n".join([*parts, "</system>"])


def meaning(path: Path, on: str | None = None) -> dict[str, Any]:
    module = nvidia_smi if nvidia_smi.looks_like(path.read_text()) else nccl_xml
    reading: Any = module.read(path)
    found = inspected(reading, Cluster.named(on) if on else None)
    text = as_text(found)
    assert max(map(len, text.splitlines())) <= max(80, len(str(path)) + 60)
    return as_data(found)


# The matrix of nvidia-smi.


def test_a_matrix_is_read_by_the_names_of_its_heading(write: Write) -> None:
    path = write(dgx_h100())
    assert nvidia_smi.looks_like(path.read_text())
    found = nvidia_smi.read(path)
    assert isinstance(found, DeviceMatrix)
    assert (len(found.gpus), len(found.nics), found.unread) == (8, 10, ())
    assert found.links[0][1] == "NV18"
    assert found.links[3][3] == "X"
    assert found.nic_links[2][2] == "PIX"
    assert found.nic_names["NIC9"] == "mlx5_9"
    assert found.numa == ("0",) * 4 + ("1",) * 4


@pytest.mark.parametrize("escape", ["\x1b[4m", "[4m"])
def test_an_underlined_heading_is_read(write: Write, escape: str) -> None:
    head, _, rest = dgx_h100().partition("\n")
    reset = escape.replace("4", "0")
    path = write(f"\t{escape}{head.strip()}{reset}\n{rest}")
    assert nvidia_smi.looks_like(path.read_text())
    assert nvidia_smi.read(path).links == nvidia_smi.read(write(dgx_h100())).links


def test_an_old_driver_names_cards_in_the_heading_and_says_soc(write: Write) -> None:
    text = """\
        GPU0    GPU1    mlx5_0  CPU Affinity
GPU0     X      SOC     PIX     0-19
GPU1    SOC      X      SOC     20-39
mlx5_0  PIX     SOC      X
"""
    found = nvidia_smi.read(write(text))
    assert (found.gpus, found.nics, found.numa) == (("GPU0", "GPU1"), ("mlx5_0",), ("", ""))
    assert found.links[0][1] == "SYS"
    assert found.nic_links == (("PIX",), ("SYS",))


def test_one_gpu_by_itself(write: Write) -> None:
    path = write("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-31\t0\t\tN/A\n")
    assert nvidia_smi.looks_like(path.read_text())
    data = meaning(path)
    assert (data["gpus"], data["tiers"], data["faults"]) == (1, [], [])


def test_rows_that_are_cut_off_or_missing_are_counted_and_read_from_their_peers(
    write: Write,
) -> None:
    lines = matrix(all_pairs(4, "NV18")).splitlines()
    found = nvidia_smi.read(write("\n".join([*lines[:3], "GPU2\tNV18\tNV"])))
    reasons = {each.reason: each.count for each in found.unread}
    assert reasons == {
        "a cell that is no known way to be joined": 1,
        "a row that is cut off": 1,
        "a row that is missing": 1,
    }
    assert found.links[2][0] == found.links[3][0] == "NV18"
    assert found.links[2][3] == ""


def test_other_output_around_a_matrix_and_launchers_before_its_lines(write: Write) -> None:
    prefixed = "\n".join(f"[1,0]<stdout>:{line}" for line in dgx_h100().splitlines())
    found = nvidia_smi.read(write(f"Sun Nov 1\n| GPU  Name |\n{prefixed}\nbye\n"))
    assert found.links[0][7] == "NV18"
    twice = nvidia_smi.read(write(dgx_h100() + "\n" + pcie_box()))
    assert any("more than one matrix" in note for note in twice.notes)
    assert twice.links[0][7] == "NV18"


def test_rows_that_disagree_are_noted(write: Write) -> None:
    links = all_pairs(4, "NV18")
    links[1][0] = "SYS"
    assert any("disagree" in note for note in nvidia_smi.read(write(matrix(links))).notes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU0",
        "hello\n",
        "GPU0 is idle\nGPU0 X NV1",
        "GPU0 GPU1\n",
        "GPU0\tGPU0\tCPU Affinity\n",
        "GPU0 X NV1\n",
    ],
)
def test_what_is_no_matrix_is_one_clear_error(write: Write, text: str) -> None:
    with pytest.raises(FormatError, match="topology"):
        nvidia_smi.read(write(text))


# What a matrix means.


def test_eight_h100_are_one_switch_of_18_links_each_not_each_pair(write: Write) -> None:
    data = meaning(write(dgx_h100()))
    switch = data["tiers"][0]
    assert (switch["kind"], switch["gpus"], switch["links_per_gpu"]) == ("nvswitch", 8, 18)
    assert switch["gb_per_s_per_gpu"] == 450
    assert switch["nccl_gb_per_s_per_gpu"] == pytest.approx(370.8)
    assert data["like"]["cluster"] == "h100_sxm"
    assert data["like"]["network"] == "ib_8x400g"
    assert data["like"]["options"] == "--on h100_sxm --network ib_8x400g"
    assert data["network"]["nics_for_gpus"] == 8
    assert data["nics"][3] == {
        "name": "mlx5_3",
        "gbit_per_s": None,
        "how": "PIX",
        "nearest_gpus": ["GPU3"],
    }
    assert data["faults"] == []
    assert any("does not name the GPUs" in note for note in data["notes"])
    assert [tier["kind"] for tier in data["tiers"]] == ["nvswitch", "numa_domain", "sockets"]


@pytest.mark.parametrize(
    ("gpus", "word", "kind", "links", "rate", "like"),
    [
        (8, "NV12", "nvswitch", 12, 300, "a100_sxm"),
        (16, "NV6", "nvswitch", 6, 150, "v100_dgx2"),
        (8, "NV8", "nvswitch", 8, 200, "a800_sxm"),
        (4, "NV18", "nvswitch", 18, 900, "gb200_nvl72"),
        (4, "NV6", "full_mesh", 18, 450, "gh200_quad"),
        (4, "NV4", "full_mesh", 12, None, None),
        (2, "NV18", "nvswitch", 18, 450, "h100_sxm"),
        (2, "NV4", "bridge", 4, None, None),
    ],
)
def test_equal_pairs(
    write: Write, gpus: int, word: str, kind: str, links: int, rate: float | None, like: str | None
) -> None:
    data = meaning(write(matrix(all_pairs(gpus, word))))
    tier = data["tiers"][0]
    assert (tier["kind"], tier["links_per_gpu"], tier["gb_per_s_per_gpu"]) == (kind, links, rate)
    assert data["like"]["cluster"] == like


def test_the_machine_named_by_the_user_sets_the_rate(write: Write) -> None:
    data = meaning(write(dgx_h100()), "b200_sxm")
    assert data["tiers"][0]["gb_per_s_per_gpu"] == 900
    assert data["like"]["cluster"] == "b200_sxm"
    other = meaning(write(dgx_h100()), "a100_sxm")
    assert any("a100_sxm has 12 links per GPU, the file 18" in note for note in other["notes"])


def test_the_cube_mesh_of_a_dgx1(write: Write) -> None:
    data = meaning(write(dgx1()))
    tier = data["tiers"][0]
    assert (tier["kind"], tier["links_per_gpu"], tier["gb_per_s_per_gpu"]) == ("cube_mesh", 6, 150)
    assert data["like"]["cluster"] == "v100_cube"
    assert data["faults"] == []


def test_a_cable_that_the_cube_mesh_lacks_is_named(write: Write) -> None:
    text = dgx1().replace("GPU0\t X \tNV1", "GPU0\t X \tPIX").replace("GPU1\tNV1", "GPU1\tPIX")
    faults = meaning(write(text))["faults"]
    assert [fault[:23] for fault in faults] == [
        "GPU0 has 5 NVLinks, the",
        "GPU1 has 5 NVLinks, the",
    ]


def test_bridges_join_pairs_only(write: Write) -> None:
    links = [
        [" X " if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(4)]
        for i in range(4)
    ]
    tier, *rest = meaning(write(matrix(links, numa=["0", "0", "1", "1"])))["tiers"]
    assert (tier["kind"], tier["gpus"], tier["links_per_gpu"]) == ("bridge", 2, 4)
    assert tier["groups"] == [["GPU0", "GPU1"], ["GPU2", "GPU3"]]
    assert [each["kind"] for each in rest] == ["numa_domain", "sockets"]


def test_a_gpu_that_lost_links_is_named(write: Write) -> None:
    links = [
        [" X " if i == j else "NV12" if 3 in {i, j} else "NV18" for j in range(8)] for i in range(8)
    ]
    data = meaning(write(matrix(links)))
    assert data["tiers"][0]["links_per_gpu"] == 18
    assert len(data["faults"]) == 1
    assert data["faults"][0].startswith("GPU3 has 12 NVLinks, the others 18")


def test_tiers_of_a_box_without_nvlink(write: Write) -> None:
    data = meaning(write(pcie_box()))
    kinds = {tier["kind"]: (tier["gpus"], len(tier["groups"])) for tier in data["tiers"]}
    assert kinds == {"pcie_switch": (2, 4), "numa_domain": (4, 2), "sockets": (8, 1)}
    assert data["like"]["cluster"] is None
    assert data["faults"] == []
    assert any("from GPU2, GPU3, GPU4, GPU5 and 2 more" in note for note in data["notes"])
    named = meaning(write(pcie_box()), "l40s")
    assert {tier["gb_per_s_per_gpu"] for tier in named["tiers"]} == {31.5}


# NCCL's XML.


def test_a_dump_is_read(write: Write) -> None:
    path = write("<!-- from NCCL -->\n" + xml())
    assert nccl_xml.kind_of(path.read_text()) == "nccl-topology"
    found = nccl_xml.read(path)
    assert isinstance(found, NcclTopology)
    assert (len(found.cpus), len(found.gpus), len(found.nics)) == (2, 8, 8)
    assert len(found.switches) == 8
    gpu = found.gpus[5]
    assert (gpu.dev, gpu.sm, gpu.rank, gpu.gdr, gpu.place.cpu) == (5, 90, 5, True, 1)
    assert gpu.pci_bytes_per_s == pytest.approx(63.0e9, rel=1e-3)
    assert found.nics[0].gbit_per_s == 400
    assert found.unread == ()


def test_what_a_dump_means(write: Write) -> None:
    data = meaning(write(xml()))
    switch = data["tiers"][0]
    assert (switch["kind"], switch["links_per_gpu"]) == ("nvswitch", 18)
    assert switch["gb_per_s_per_gpu"] == 450
    assert switch["nccl_gb_per_s_per_gpu"] == pytest.approx(370.8)
    assert data["like"]["options"] == "--on h100_sxm --network ib_8x400g"
    assert data["network"] == {"nics_for_gpus": 8, "gbit_per_s_per_node": 3200}
    assert data["nics"][2]["how"] == "PIX"
    assert data["nics"][2]["nearest_gpus"] == ["GPU2"]
    assert data["faults"] == []


def test_links_to_four_switches_add_up(write: Write) -> None:
    links = "".join(
        f'<nvlink target="0000:0{i}:00.0" count="{count}" tclass="0x068000"/>'
        for i, count in enumerate((5, 5, 4, 4))
    )
    assert meaning(write(xml(nvlink=links)))["tiers"][0]["links_per_gpu"] == 18


def test_blackwell_has_its_switch_beyond_the_bus(write: Write) -> None:
    link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    data = meaning(write(xml(sm=100, nvlink=link)))
    assert data["tiers"][0]["gb_per_s_per_gpu"] == 900
    assert data["tiers"][0]["nccl_gb_per_s_per_gpu"] == pytest.approx(721.8)
    assert data["like"]["cluster"] == "b200_sxm"
    tray = meaning(write(xml(gpus=4, sm=103, nvlink=link, speed="800000")))
    assert tray["like"]["options"] == "--on gb300_nvl72 --network ib_1x800g_per_gpu"


def test_a_gpu_without_its_links_is_a_fault(write: Write) -> None:
    data = meaning(write(xml(lame={3: ""})))
    assert data["faults"] == [
        "GPU3 has no NVLink, the others 18: NCCL finds fewer channels for every group that it is in"
    ]
    fewer = '<nvlink target="0000:07:00.0" count="12" tclass="0x068000"/>'
    assert "GPU3 has 12 NVLinks" in meaning(write(xml(lame={3: fewer})))["faults"][0]


def test_links_between_gpus_are_a_mesh(write: Write) -> None:
    def links(gpu: int) -> str:
        return "".join(
            f'<nvlink target="0000:{peer}1:00.0" count="6" tclass="0x030200"/>'
            for peer in range(4)
            if peer != gpu
        )

    data = meaning(write(xml(gpus=4, lame={gpu: links(gpu) for gpu in range(4)})))
    assert data["tiers"][0]["kind"] == "full_mesh"
    assert data["tiers"][0]["links_per_gpu"] == 18
    assert data["like"]["cluster"] == "gh200_quad"


def test_a_file_of_a_cloud_has_no_links_and_falls_back_to_the_preset(write: Write) -> None:
    boards = "".join(
        f'<pci busid="0000:1{i}:00.0" class="0x030200" vendor="0x10de" device="0x20b0"'
        ' link_speed="8 GT/s" link_width="16"/>'
        for i in range(8)
    )
    cards = "".join(
        f'<pci busid="0000:2{i}:00.0" class="0x020000" vendor="0x1d0f" device="0xefa0"/>'
        for i in range(4)
    )
    switch = f'<pci busid="ffff:ff:01.0" class="0x060400">{boards}{cards}</pci>'
    data = meaning(write(f'<system version="1"><cpu numaid="0">{switch}</cpu></system>'))
    assert data["gpus"] == 8
    assert data["like"]["options"] == "--on a100_sxm_40gb --network efa_4x100g"
    assert data["tiers"][0]["kind"] == "nvswitch"
    assert data["tiers"][0]["gb_per_s_per_gpu"] == 300
    assert any("no GPU has an <nvlink>" in note for note in data["notes"])


def test_links_of_width_zero_have_no_rate(write: Write) -> None:
    data = meaning(write(xml(width="0")))
    assert data["tiers"][-1]["gb_per_s_per_gpu"] is None
    assert any("width 0" in note for note in data["notes"])


def test_cards_without_gpus_and_many_gpus_are_inspected_soon(write: Write) -> None:
    card = '<pci class="0x020700" busid="0000:01:00.0"/>'
    data = meaning(write(f"<system><cpu>{card}</cpu></system>"))
    assert (data["gpus"], len(data["nics"]), data["tiers"]) == (0, 1, [])
    link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    many = "".join(
        f'<cpu host_hash="0x{host:x}"><pci class="0x030200" busid="0000:0{host}:00.0">'
        f'<gpu dev="{dev}" sm="100" rank="{4 * host + dev}">{link}</gpu></pci></cpu>'
        for host in range(144)
        for dev in range(4)
    )
    start = time.process_time()
    rack = meaning(write(f"<system>{many}</system>"))
    assert time.process_time() - start < 5
    assert (rack["gpus"], rack["hosts"], rack["like"]["cluster"]) == (576, 144, "gb200_nvl72")
    sizes = {tier["kind"]: tier["gpus"] for tier in rack["tiers"]}
    assert sizes == {"nvswitch": 576, "sockets": 4}


def test_numbers_that_cannot_be_are_counted(write: Write) -> None:
    bad = '<nvlink target="0000:07:00.0" count="{}" tclass="0x068000"/>'
    for count in ("-1", "nan", "9" * 400, "1e400", ""):
        found = nccl_xml.read(write(xml(lame={0: bad.format(count)})))
        assert isinstance(found, NcclTopology)
        assert [each.count for each in found.unread] == [1]
        assert found.gpus[0].nvlinks == ()
    speeds = nccl_xml.read(write(xml(speed="-1")))
    assert isinstance(speeds, NcclTopology)
    assert speeds.nics[0].gbit_per_s is None
    assert speeds.unread[0].count == 8


_LAUGHS = "".join(
    f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' if i else '<!ENTITY l0 "ha">' for i in range(30)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"<!DOCTYPE system [{_LAUGHS}]><system>&l29;</system>", "line 1 declares a document type"),
        (
            '<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>',
            "line 1 declares a document type",
        ),
        ("<system><cpu></system>", "line 1 is not sound XML: mismatched tag"),
        (xml()[:-200], r"line \d+ is not sound XML: (no element found|unclosed token)"),
        ("<system>" + "<pci>" * 100_000, "nested over 64 levels"),
        ("<system>" + "<cpu/>" * 60_000 + "</system>", "over 50,000 elements"),
        (
            "<system><cpu>" + '<pci class="0x030200"/>' * 10_000 + "</cpu></system>",
            "holds over 576 GPUs",
        ),
        ("<system></system>", "neither a GPU nor a network card"),
        ("<algo/>", "neither <system> nor <graphs>"),
        ("<graphs></graphs>", "holds no graph"),
        ("", "not sound XML"),
        ('<?xml version="1.0" encoding="nonsense-8"?><system/>', "line 1 is not sound XML"),
    ],
)
def test_what_is_damaged_or_hostile_is_refused_at_once(
    write: Write, text: str, reason: str
) -> None:
    start = time.process_time()
    with pytest.raises(FormatError, match=reason):
        nccl_xml.read(write(text))
    assert time.process_time() - start < 5


def test_a_gzip_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"<system>" + b" " * (20 * 2**20)))
    with pytest.raises(FormatError, match=r"larger than 16 MiB|times its size"):
        nccl_xml.read(path)


def test_no_damage_ends_in_anything_but_a_clear_error(write: Write) -> None:
    chance = random.Random(1)
    for text, module in ((xml(), nccl_xml), (dgx_h100(), nvidia_smi)):
        for _ in range(150):
            damaged = list(text)
            for _ in range(chance.randint(1, 20)):
                damaged[chance.randrange(len(damaged))] = chance.choice('\0<>"&\t\n9-Xé\ud7ff')
            cut = damaged[: chance.randrange(1, len(damaged))]
            for candidate in ("".join(damaged), "".join(cut)):
                path = write(candidate)
                with suppress(ShardcostError):
                    found: Any = module.read(path)
                    as_text(inspected(found))


@pytest.mark.parametrize(
    "head",
    [
        "<?a?>" * 13_000,
        "<!-- -->" * 8_000,
        "<" * 65_536,
        "GPU0 " * 13_000,
        "[4m" * 20_000,
        "\t" * 65_536,
    ],
)
def test_recognising_is_quick_whatever_the_file(head: str) -> None:
    start = time.process_time()
    nccl_xml.looks_like(head)
    nvidia_smi.looks_like(head)
    assert time.process_time() - start < 5


# The channels that NCCL chose.

_GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="12" speedintra="30" speedinter="25"
         latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="1" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL"
         typeinter="PIX"><channel/></graph>
  <graph id="3" pattern="5" nchannels="x" speedintra="0" speedinter="0"/>
</graphs>"""


def test_channels_and_their_rates(write: Write) -> None:
    path = write(_GRAPHS)
    assert nccl_xml.kind_of(_GRAPHS) == "nccl-graph"
    reading = nccl_xml.read(path)
    assert isinstance(reading, NcclGraphs)
    assert reading.graphs[0].routes == (("net 0", "gpu 0", "gpu 1", "net 0"),)
    found = inspected(reading)
    assert isinstance(found, GraphInspection)
    data = as_data(found)
    ring = data["graphs"][0]
    assert (ring["pattern"], ring["channels"], ring["gpus"]) == ("ring", 12, 2)
    assert (ring["gb_per_s_in_node"], ring["gb_per_s_between_nodes"]) == (360, 300)
    assert data["faults"] == ["balanced tree: no channel was found"]
    assert {each["reason"] for each in data["unread"]} == {
        "nchannels of <graph> is no sound number",
        "<graph> without its sizes",
    }
    assert "ring" in as_text(found)


def test_the_published_sample_is_understood(evidence: Path) -> None:
    path = evidence / "samples" / "topology" / "nccl_topo_p4d-24xl.xml"
    if not path.is_file():
        pytest.skip("the sample is not here")
    found = inspected(nccl_xml.read(path))
    assert isinstance(found, TopologyInspection)
    assert (found.cluster, found.network) == ("a100_sxm_40gb", "efa_4x100g")
    assert [card.nearest for card in found.cards][1] == ("GPU2", "GPU3")
