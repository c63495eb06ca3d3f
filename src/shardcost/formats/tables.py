"""Measured tables: CSV files, one measurement a row, recognised by their header.

Of kinds with several measured columns, each becomes a row of its own (`_by_figure`). A folder with
``runs.csv`` and a file of requests for each run is a table too (`shardcost.formats.request_runs`).

A table comes from anywhere, so it is read without trusting it: its size is bounded, its text must
be UTF-8, every row must have as many cells as the header, and whatever is wrong becomes one line
that names the file and the place. Cells stay text; what they mean is for those who predict them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, Final, TypeAlias

from shardcost.errors import BadValueError, FormatError, printable, shown
from shardcost.files import is_file, is_folder, read_text, write_whole
from shardcost.records import dataclass

MOST_BYTES: Final = 64 * 2**20
"""A table of ten thousand rows has 1 MiB; 64 MiB leaves room and still fits any memory."""
_MOST_CELLS: Final = 2_000_000
"""Each takes up to 80 bytes once it is read."""
_MOST_COLUMNS: Final = 1000
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    kind: tuple(columns.split())
    for kind, columns in {
        "collectives": "dataset cluster network nodes gpus_per_node num_gpus library mode"
        " single_process collective dtype size_bytes time_us",
        "dispatch": "dataset cluster network nodes num_gpus library kernel mode phase dtype tokens"
        " hidden topk experts sms ll time_us",
        "gemm": "gpu dtype m n k time_us",
        "attention": "gpu phase batch query_tokens context_tokens heads kv_heads head_dim time_us",
        "layers": "gpu hidden heads kv_heads head_dim ffn gated tp batch seq pass time_us",
        "decode": "gpu hidden heads kv_heads head_dim ffn gated tp batch context part time_us",
        "elementwise": "gpu op bytes time_us",
        "elementwise_layer": "gpu op tokens width bytes time_us",
        "experts": "gpu library kernel dtype gated tokens hidden inter experts topk ep tp pairs"
        " active_experts busiest_expert time_us",
        "grouped_gemm": "gpu routed_rows distinct_experts largest_group n k time_us",
        "linear_attention": "gpu library kernel op part phase batch query_tokens k_heads k_dim"
        " v_heads v_dim time_us",
        "mla": "gpu library kernel scope phase form dtype kv_dtype weight_dtype batch query_tokens"
        " context_tokens heads time_us",
        "ceilings": "gpu what value unit",
        "fp8_conversion": "gpu m n k gemm_us quantize_us norm_us norm_and_quantize_us",
        "sustained": "gpu dtype m n k burst_us sustained_us",
        "overlap": "gpu m n k ctas gemm_us_alone gemm_us_overlapped",
        "launch": "gpu what time_us",
        "kernels": "gpu kind dtype mode kernel m n k groups largest_group batch heads kv_heads"
        " head_dim query_tokens context_tokens tokens width bytes_moved time_us",
        "layer_ops": "model op phase gpu tp tokens msg_bytes time_us",
        "training": "model layers hidden heads seq mbs gbs gpus tp pp dp measured_step_s",
        "memory": "gpu capacity_GB layers hidden heads seq mbs dp pp tp zero_stage outcome"
        " mem_alloc_GB",
        "memory_runs": "gpu layers hidden ffn heads seq mbs gbs dp pp tp vocab_padded"
        " main_grad_dtype dist_optimizer peak_bytes",
        "inference": "model layers hidden heads tp engine batch isl osl metric value",
        "serving": "model layers hidden heads cluster engine weight_dtype deployment gpus replicas"
        " tp pp dp ep arrival concurrency isl osl tpot_mean_ms tpot_median_ms",
        "requests": "run model layers hidden heads cluster engine weight_dtype tp pp dp ep"
        " max_num_seqs max_num_batched_tokens",
        "comm_fraction": "model phase gpu tp total_ms comm_ms comm_fraction_pct",
        "jitter": "cluster network nodes gpus collective size_bytes p90_rel p99_rel",
        "jitter_steps": "model cluster gpus gbs logged_every p90_over_median p99_over_median",
        "published_model_errors": "tool quantity error_pct statistic",
    }.items()
}
"""The columns by which each kind of table is known, in any order."""
_FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "fp8_conversion": ("gemm_us", "quantize_us", "norm_us", "norm_and_quantize_us"),
    "sustained": ("burst_us", "sustained_us"),
    "memory_runs": ("peak_bytes", "allocated_bytes"),
    "jitter": ("p90_rel", "p99_rel"),
    "jitter_steps": ("p90_over_median", "p99_over_median"),
    "serving": (
        "ttft_mean_ms",
        "ttft_median_ms",
        "ttft_p90_ms",
        "ttft_p99_ms",
        "tpot_mean_ms",
        "tpot_median_ms",
        "tpot_p99_ms",
        "itl_mean_ms",
        "itl_p99_ms",
        "e2e_mean_ms",
        "e2e_p99_ms",
        "output_tokens_per_s",
        "requests_per_s",
    ),
}  # fmt: skip
"""Kinds with several measured columns: each of their cells that is not blank becomes a row, whose
column `figure` names what was measured and whose column `measured` has it. A row of the file with
nothing measured at all becomes one for each of these columns, to be predicted all the same."""
_BESIDE: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(columns.split())
    for kind, columns in {
        "collectives": "algorithm protocol channels concurrent_groups framework iterations min_us"
        " p90_us sent_bytes_per_rank",
        "dispatch": "gpus_per_node version dest_gpus dest_nodes payload_bytes stated stated_unit",
        "gemm": "framework",
        "layers": "model",
        "kernels": "device software calls min_us p90_us",
        "decode": "model",
        "experts": "version mode model routing alpha",
        "grouped_gemm": "model dtype experts_here top_k tokens routing",
        "linear_attention": "version mode dtype state_dtype conv_width conv_channels",
        "mla": "version mode hidden q_lora kv_lora nope rope v_dim",
        "sustained": "seconds clock_mhz power_w temperature_c",
        "overlap": "copy_gbps_alone copy_gbps_overlapped",
        "layer_ops": "layers_covered hidden heads kv_heads ffn gated intra_link batch seq dtype"
        " stat",
        "training": "params_b kv_heads ffn gated vocab gpus_per_node vp cp ep sp zero_fsdp"
        " recompute dtype framework cluster network gpu intra_link inter_link tp_overlap"
        " tokens_per_s_per_gpu tflops_reported flops_kind attn_flops mfu_reported_pct peak_tflops"
        " ar_GBps_measured ag_GBps_measured rs_GBps_measured ar_intra_GBps mem_alloc_GB mem_res_GB"
        " hf_id head_dim tied window window_pattern experts top_k expert_ffn shared_ffn"
        " dense_layers_first moe_every moe_latent q_lora kv_lora nope_head_dim rope_head_dim"
        " v_head_dim layer_pattern mamba_heads mamba_head_dim mamba_state mamba_groups mtp_layers"
        " etp order pp_layout recompute_modules recompute_layers saved_activations grad_dtype"
        " attention_dtype dispatcher a2a_overlap moe_routing cuda_graph cuda_graph_scope"
        " fused_grouped_mlp adapters adapter_targets chips devices_per_chip topology slices"
        " network_stated nics_per_node nic_gbps framework_version version submitter system"
        " measured_from step_mean_s step_p90_s step_p99_s step_max_s steps runs run_spread_pct",
        "memory": "num_params kv_heads vocab tied accumulation tp_mode accumulate_grad_in_fp32"
        " dtype mem_res_GB",
        "memory_runs": "family test_family test_case tag recorded capacity_GB nodes gpus_per_node"
        " gpus arch layer_pattern kv_heads head_dim gated activation bias norm qk_norm vocab tied"
        " positions max_positions dropout attention_dropout vp pp_layout layers_first_stage"
        " layers_last_stage embedding_in_split loss_in_split cp cp_kind ep etp sp order experts"
        " top_k expert_ffn shared_ffn moe_layer_freq moe_latent dispatcher capacity_factor"
        " grouped_gemm a2a_overlap q_lora kv_lora nope_head_dim rope_head_dim v_head_dim mtp_layers"
        " mamba_heads mamba_head_dim mamba_state mamba_groups dtype fp8 fp8_weights optimizer"
        " dist_optimizer_instances precision_aware moment_dtype main_weight_dtype fsdp"
        " overlap_grad_reduce overlap_param_gather recompute recompute_method recompute_layers"
        " recompute_modules optimizer_offload activation_offload implementation attention"
        " deterministic loss_fusion grad_accumulation_fusion mask_in_dataloader cuda_graph"
        " measured_rank allocated_bytes iteration_s iteration_is steps",
        "inference": "kv_heads ffn gated vocab cluster gpu pp n_gpus weight_dtype batching unit"
        " intra_link inter_link",
        "serving": "hf_id kv_heads head_dim ffn gated vocab experts top_k expert_ffn shared_ffn"
        " dense_layers q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
        " index_top_k linear_layers window_layers window_tokens network nodes version cache_dtype"
        " prefill_workers prefill_tp prefill_pp prefill_dp prefill_ep decode_workers decode_tp"
        " decode_pp decode_dp decode_ep request_rate lengths requests prefix_hit speculative"
        " chunked_prefill max_num_batched_tokens max_num_seqs recv_interval eager ttft_mean_ms"
        " ttft_median_ms ttft_p90_ms ttft_p99_ms tpot_p99_ms itl_mean_ms itl_p99_ms e2e_mean_ms"
        " e2e_p99_ms output_tokens_per_s requests_per_s measured_on",
        "requests": "hf_id kv_heads head_dim ffn gated vocab experts top_k expert_ffn shared_ffn"
        " dense_layers q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
        " index_top_k linear_layers window_layers window_tokens network nodes version cache_dtype"
        " gpus chunked_prefill prefix_caching gpu_memory_utilization kv_cache_tokens block_size"
        " eager arrival lengths requests ttft_mean_ms ttft_median_ms tpot_mean_ms e2e_mean_ms"
        " output_tokens_per_s",
        "comm_fraction": "intra_link tokens_or_seq batch method",
        "jitter": "islands algorithm asked iterations p1_us p10_us median_us mean_us p90_us p99_us"
        " p99_9_us max_us p1_rel p10_rel mean_rel p99_9_rel max_rel",
        "jitter_steps": "version submitter system run steps median_s mean_s p90_s p99_s max_s"
        " mean_over_median max_over_median slow_steps_pct stalls mean_without_stalls_over_median",
    }.items()
}
"""Further columns that a kind may have: those that its predictions read, and other figures of the
same run, which no prediction depends on."""
_PROVENANCE: Final = frozenset(
    ("dataset", "source", "url", "citation", "licence", "provenance", "note", "notes", "comment")
)
"""Columns that change no prediction of any kind: where a row comes from, and remarks."""
VALIDATED: Final = (
    "collectives",
    "memory",
    "memory_runs",
    "attention",
    "elementwise",
    "elementwise_layer",
    "gemm",
    "experts",
    "mla",
    "grouped_gemm",
    "fp8_conversion",
    "linear_attention",
    "sustained",
    "overlap",
    "layers",
    "decode",
    "layer_ops",
    "training",
    "inference",
    "serving",
    "requests",
    "comm_fraction",
    "dispatch",
    "jitter",
    "jitter_steps",
)
"""The kinds whose rows shardcost predicts so far."""
USERS: Final = ("kernels",)
"""Kinds that are predicted too, of which there are users' tables alone."""
RUNS: Final = "runs.csv"
"""The file by which a folder of requests is known: its runs, each with a file of its name."""
_MADE: Final = {
    *("figure", "measured"),
    *("request", "arrival_s", "prompt_tokens", "output_tokens"),
}
"""Columns of tables with a figure a row that stand in no header: reading makes them."""
_COLUMNS_SHOWN: Final = 12
_VALUES_SHOWN: Final = 4
_MEANT: Final = 0.5
"""Likeness from which on a header is taken for a misspelt one of a kind."""
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")

_LINE: Final = re.compile(r"[^\r\n]*+(?:\r\n|[\r\n])|[^\r\n]++")

Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Table:
    """A measured table: text cells by column."""

    kind: str
    path: Path
    columns: Mapping[str, list[str]]
    rows: int
    origins: Sequence[int] | None = None
    """Of a table with a figure a row, or of a part of one: `file_rows`."""

    @property
    def file_rows(self) -> Sequence[int]:
        """Which row of the file, from 0, each row is of."""
        return range(self.rows) if self.origins is None else self.origins

    @property
    def file_row_count(self) -> int:
        """How many rows of the file the rows are of."""
        return len(set(self.file_rows))

    def records(self) -> Iterator[Row]:
        """Yield each row as its cells by column."""
        for cells in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, cells, strict=True))

    def where(self, keep: Callable[[Row], bool]) -> Table:
        """Return the table of the rows that `keep` holds for."""
        return self.at([i for i, row in enumerate(self.records()) if keep(row)])

    def at(self, places: Sequence[int]) -> Table:
        """Return the table of the rows at some places, in their order."""
        columns = {name: [cells[i] for i in places] for name, cells in self.columns.items()}
        origins = [self.file_rows[i] for i in places]
        return replace(self, columns=columns, rows=len(places), origins=origins)


def read_table(path: Path, *, strict: bool = True) -> Table:
    """Return the measured table that a CSV file holds, or a folder of requests.

    Args:
        path: The file, or the folder.
        strict: Refuse columns that are not understood (`check_columns`).
    """
    file = path / RUNS if is_folder(path) and is_file(path / RUNS) else path
    head, records = opened_csv(file)
    kind = _kind(head, str(file))
    columns: list[list[str]] = [[] for _ in head]
    for record in records:
        for column, cell in zip(columns, record, strict=True):
            column.append(cell)
    table = Table(kind, path, dict(zip(head, columns, strict=True)), len(columns[0]))
    if strict:
        check_columns(table)
    if kind == "requests":
        from shardcost.formats.request_runs import by_request

        return by_request(table, file.parent)
    return _by_figure(table)


def opened_csv(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    """Return the header of a CSV file, and its rows as they are read."""
    file = str(path)
    text = read_text(path, MOST_BYTES)
    nul = text.find("\0")  # no text has one, and csv would keep it inside a cell
    if nul >= 0:
        raise FormatError(file, f"line {text.count(chr(10), 0, nul) + 1} holds a NUL character")
    records = _records(text, file)
    head = next(records, None)
    if head is None:
        raise FormatError(file, "is empty")
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None:
        raise FormatError(file, f"line 1 names the column {shown(twice)} twice")
    return head, records


def _by_figure(table: Table) -> Table:
    """Return a table with one measured figure a row."""
    known = _FIGURES.get(table.kind)
    if known is None:
        return table
    figures = [name for name in known if name in table.columns]
    own = ("figure", "measured")
    beside = [name for name in table.columns if name not in (*figures, *own)]
    columns: dict[str, list[str]] = {name: [] for name in (*beside, *own)}
    origins = []
    for place, row in enumerate(table.records()):
        for figure in [name for name in figures if row[name]] or figures:
            cells = (*(row[name] for name in beside), figure, row[figure])
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
            origins.append(place)
    return replace(table, columns=columns, rows=len(origins), origins=origins)


def check_columns(table: Table) -> None:
    """Raise where a table has columns, not all blank, that predictions of its kind do not know.

    Such a column may change the answer: a row with experts is not to be priced without them.
    """
    unknown = unknown_columns(table)
    if unknown:
        named = ", ".join(unknown[:_COLUMNS_SHOWN]) + ", …" * (len(unknown) > _COLUMNS_SHOWN)
        reason = f"is a table of {table.kind} with columns that are not understood: {named}"
        raise FormatError(str(table.path), reason)


def unknown_columns(table: Table) -> list[str]:
    """Return the columns, not all blank, that predictions of a table's kind do not know."""
    known = _known_columns(table.kind) | (_MADE if table.origins is not None else set())
    return [name for name, cells in table.columns.items() if name not in known and any(cells)]


def of_one(table: Table, column: str, option: str, wanted: str | None) -> Table:
    """Return the rows whose cell in a column is `wanted` or blank.

    Where all rows name the same, a caller who wants another means those rows all the same.

    Args:
        table: The table, with or without the column.
        column: What rows may differ in.
        option: By which a user says what is wanted, for the error.
        wanted: None where nothing is said.
    """
    named = {name for name in table.columns.get(column, ()) if name}
    if len(named) < 2:
        return table
    if wanted not in named:
        some = ", ".join(map(shown, sorted(named)[:_VALUES_SHOWN]))
        some += ", …" * (len(named) > _VALUES_SHOWN)
        reason = f"has rows of several {column}s ({some}): say {option}, one of them"
        raise FormatError(str(table.path), reason)
    return table.where(lambda row: row[column] in {"", wanted})


def begins_like_a_table(head: str) -> bool:
    """Return whether a text begins with the header of a measured table, be it misspelt."""
    first = head.lstrip("\r\n").partition("\n")[0]
    names = {name.strip().strip('"') for name in first.split(",")}
    return max(_likeness(kind, names) for kind in _COLUMNS) >= _MEANT


def number(row: Row, column: str, least: float, most: float, rule: str) -> float:
    """Return the number in a cell, if it is one and within its range (`least` itself is not)."""
    text = row[column]
    value = float(text) if _NUMBER.fullmatch(text) else nan
    if not least < value <= most:
        raise BadValueError(column, text, rule)
    return value


def write_table(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def _records(text: str, file: str) -> Iterator[list[str]]:
    """Yield the header and the rows, each of the header's length, without blank lines."""
    # Lines with their ends: a quoted cell may go on in the next.
    reader = csv.reader((line[0] for line in _LINE.finditer(text)), strict=True)
    cells = in_all = 0
    try:
        for record in reader:
            if not record:
                continue
            if cells and len(record) != cells:
                reason = f"line {reader.line_num} has {len(record)} cells, the header {cells}"
                raise FormatError(file, reason)
            cells = len(record)
            in_all += cells
            if cells > _MOST_COLUMNS:
                raise FormatError(file, f"line {reader.line_num} has over {_MOST_COLUMNS} columns")
            if in_all > _MOST_CELLS:
                raise FormatError(file, f"line {reader.line_num}: over {_MOST_CELLS:,} cells")
            yield [_seen(cell.strip()) for cell in record]
    except csv.Error as error:
        raise FormatError(file, f"line {reader.line_num} is not CSV: {error}") from None


def _seen(cell: str) -> str:
    """Return a cell without what a terminal would obey; it may have several lines."""
    return cell if cell.isprintable() else "\n".join(map(printable, cell.split("\n")))


def _kind(head: list[str], file: str) -> str:
    """Return which kind of table a header is of, if it is of one that can be validated."""
    whole = [kind for kind, columns in _COLUMNS.items() if set(columns) <= set(head)]
    if whole:
        kind = max(whole, key=lambda each: len(_COLUMNS[each]))
        if kind not in (*VALIDATED, *USERS):
            known = ", ".join((*VALIDATED, *USERS))
            raise FormatError(file, f"is a table of {kind}, not yet validated (so far: {known})")
        return kind
    nearest = max(_COLUMNS, key=lambda each: _likeness(each, head))
    if _likeness(nearest, head) < _MEANT:
        raise FormatError(file, f"line 1 is not the header of a measured table: {shown(head)}")
    missing = ", ".join(name for name in _COLUMNS[nearest] if name not in head)
    raise FormatError(file, f"line 1 looks like a table of {nearest}, without columns {missing}")


def _known_columns(kind: str) -> set[str]:
    return {*_COLUMNS[kind], *_BESIDE.get(kind, ()), *_PROVENANCE}


def _likeness(kind: str, head: Collection[str]) -> float:
    """Return the share of a kind's columns, and of foreign ones beside them, that a header has."""
    columns = _COLUMNS[kind]
    foreign = sum(name not in _known_columns(kind) for name in head)
    return sum(name in head for name in columns) / (len(columns) + foreign)
