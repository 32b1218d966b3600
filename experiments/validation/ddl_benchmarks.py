"""The DDL benchmarks of 2020 (facts/mgs.md 3.1): what was measured, and on which gradients."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

METHODS = {"BSP-A2A": "BSP", "WFBP-A2A": "WFBP", "MG-WFBP": "MG-WFBP"}
GPUS = (4, 8, 16, 32)
SENTENCE, VOCABULARY = 64, 30528
"""Tokens of a sentence and rows of the embedding that the benchmark's BERT scripts set."""

GREEDY_LINK = {
    "10GbE": {
        4: (4.204299e-05, 2.058936e-10),
        8: (5.230273e-04, 8.570747e-10),
        16: (9.080981e-04, 7.395651e-10),
        32: (4.042923e-03, 8.643301e-10),
    },
    "56Gb": {
        4: (4.204299e-05, 2.058936e-10),
        8: (9.753672e-05, 3.056823e-10),
        16: (7.075103e-04, 4.059479e-10),
        32: (4.063208e-04, 4.906986e-10),
    },
}
"""alpha in s and beta in s/byte with which MG-WFBP plans: facts/mgs.md section 2; for 16 GPUs on
56Gb and for 32 GPUs as HKBU-HPML/ddl-benchmarks@565964a mgwfbp/hv_distributed_optimizer.py has
them. Its profiled alpha and beta are never measured, since layer times are given."""
FORCED_ELEMENTS = 8192
"""The same code joins a group below this to its neighbour whatever the model says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A network as the benchmark trains it."""

    name: str
    table: str
    """Its name in mgs_espresso_tensor_ready.csv."""
    hidden: int = 0
    """Width of a transformer; 0 for a convolutional network, trained by SGD."""
    layers: int = 0

    @property
    def adam(self) -> bool:
        """Whether AdamW trains it."""
        return self.hidden > 0

    @property
    def passes(self) -> int:
        """Times that the optimiser moves an array of the model's size: SGD 3, AdamW 18."""
        return 18 if self.adam else 3

    @property
    def head_share(self) -> float:
        """Share of the FLOPs in the vocabulary projection, which backward starts with.

        Its gradient is added to the embedding's and sent with it, at the end of backward.
        """
        if not self.hidden:
            return 0.0
        layer = 24 * self.hidden**2 + 4 * SENTENCE * self.hidden
        head = 2 * self.hidden * VOCABULARY
        return head / (self.layers * layer + head)


RESNET_50 = Model(name="ResNet-50", table="resnet50")
BERT_BASE = Model(name="BERT-Base", table="bert_base_squad", hidden=768, layers=12)
BERT_LARGE = Model(name="BERT-Large", table="bert_large", hidden=1024, layers=24)
MODELS = {model.name: model for model in (RESNET_50, BERT_BASE, BERT_LARGE)}
FITTED = (RESNET_50.name, BERT_BASE.name)
"""Models that anything is calibrated or fitted on; BERT-Large is kept for the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured iteration time."""

    model: str
    network: str
    gpus: int
    method: str
    measured_s: float
    single_gpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Gradients in backward order."""

    elements: tuple[int, ...]
    gaps: tuple[float, ...]
    """Time from the gradient before, in any unit."""


def read_rows(facts: Path) -> list[Row]:
    """Rows of the three all-reduce methods: the CSV's, and BERT-Large's of the sheet's table."""
    rows = []
    with (facts / "measured" / "mgs_ddl_benchmarks_2020.csv").open(newline="") as lines:
        for line in csv.DictReader(lines):
            if line["method"] not in METHODS:
                continue
            row = Row(
                model=line["model"],
                network=line["network"].split()[0],
                gpus=int(line["gpus(4_per_node)"]),
                method=METHODS[line["method"]],
                measured_s=float(line["iter_time_s(derived=bs*n/throughput)"]),
                single_gpu_s=float(line["batch_per_gpu"]) / float(line["single_gpu_samples_per_s"]),
            )
            rows.append(row)
    if all(row.model != BERT_LARGE.name for row in rows):
        rows += _rows_of_sheet((facts / "mgs.md").read_text(encoding="utf-8"))
    return rows


def _rows_of_sheet(text: str) -> Iterator[Row]:
    """BERT-Large in the sheet's table: "BSP / WFBP / MG-WFBP" in ms, a column per GPU count."""
    single = re.search(r"BERT-Large (\d+\.\d+), BERT-Base [\d.]+ ms", text)
    if single is None:
        return
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != BERT_LARGE.name or cells[2:3] != ["BSP / WFBP / MG-WFBP"]:
            continue
        for gpus, times in zip(GPUS, cells[3:], strict=True):
            for method, ms in zip(METHODS.values(), times.split("/"), strict=True):
                yield Row(
                    model=BERT_LARGE.name,
                    network=cells[1],
                    gpus=gpus,
                    method=method,
                    measured_s=float(ms) / 1e3,
                    single_gpu_s=float(single[1]) / 1e3,
                )


def read_gradients(facts: Path) -> dict[str, Gradients]:
    """Sizes and ready times of each model's gradients, as Espresso measured them on a V100."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    with (facts / "measured" / "mgs_espresso_tensor_ready.csv").open(newline="") as lines:
        for line in csv.DictReader(lines):
            elements, gaps = found.setdefault(line["model"], ([], []))
            elements.append(int(line["numel"]))
            gaps.append(float(line["ready_gap_us"]))
    tables = {
        name: Gradients(elements=tuple(elements), gaps=tuple(gaps))
        for name, (elements, gaps) in found.items()
    }
    base = tables[BERT_BASE.table]
    tables.setdefault(BERT_LARGE.table, _large_from_base(base))
    return {model.name: tables[model.table] for model in MODELS.values()}


def _large_from_base(base: Gradients) -> Gradients:
    """BERT-Large by its published shape: twice the layers, 4/3 as wide, with base's times."""
    pairs = list(zip(base.elements, base.gaps, strict=True))
    num = 16  # tensors of a layer
    top, bottom = 2, 2 + num * BERT_BASE.layers
    layers = [pairs[start : start + num] for start in range(top, bottom, num)]
    factor = BERT_LARGE.hidden / BERT_BASE.hidden
    large = [(_widened(n), gap) for n, gap in pairs[:top]]
    for layer in layers:
        large += [(_widened(n), gap * factor**2) for n, gap in layer] * 2
    large += [(_widened(n), gap) for n, gap in pairs[bottom:]]
    return Gradients(
        elements=tuple(n for n, _ in large),
        gaps=tuple(gap for _, gap in large),
    )


def _widened(elements: int) -> int:
    """Elements of a BERT-Base tensor in BERT-Large; the SQuAD head's bias has no width."""
    width, wide = BERT_BASE.hidden, BERT_LARGE.hidden
    if elements % width:
        return elements
    rows = elements // width
    square = rows % width == 0 and rows // width in (1, 4)
    return rows * wide * wide // width if square else rows * wide
