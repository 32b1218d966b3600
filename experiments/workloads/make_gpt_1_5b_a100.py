"""Builds gpt-1.5b-a100.json: the 1.5B GPT of the zero-bubble paper, from its profiled stages.

Qi et al. (ICLR 2024, arXiv:2401.10241, Table 9) publish T_F, T_B and T_W of a stage of three
transformer layers at 6 samples on A100-80GB SXM. This turns them into a workload of 22 such
layers, an embedding and a head. What the paper does not give is derived here, and every note of
the workload says from what. Sections refer to costmodels.md of the facts.

    python experiments/workloads/make_gpt_1_5b_a100.py --facts ../shared/facts

Shapes: s tokens per sample, h width, a heads, V vocabulary, b samples per call.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from autoplan.documents import decode, pretty_json, read_bytes, write_atomic
from autoplan.errors import AutoplanError, InputError, require
from autoplan.workload import CostCurve, Layer, Provenance, Workload

ROOT = Path(__file__).resolve().parents[2]
PROFILE = Path("measured") / "meas_zerobubble_profile.csv"

NUM_LAYERS, S, H, A, V = 22, 1024, 2304, 24, 51200
B = 6
LAYERS_PER_STAGE = 3
BYTES_16, BYTES_32, BYTES_64 = 2, 4, 8

PEAK_FLOP_PER_S = 312e12
GEMM_EFFICIENCY = 0.73
GEMM_HALF_FLOP = 20e9
OVERHEAD_PER_GEMM_S = GEMM_HALF_FLOP / (GEMM_EFFICIENCY * PEAK_FLOP_PER_S)
MEMORY_BYTES_PER_S = 2039e9
FORWARD_GEMMS = 6
"""Query-key-value, scores, context, projection, and two of the feed-forward part."""

FORWARD_FLOP = B * S * H * (24 * H + 4 * S)
INPUT_GRADIENT_FLOP = B * S * H * (24 * H + 8 * S)
WEIGHT_GRADIENT_FLOP = B * S * H * 24 * H
LOGITS_FLOP = 2 * B * S * H * V
"""Of the head's forward, of its input gradient, and of its weight gradient."""

NOTES = (
    "times of the transformer layers: Table 9 of the paper, a stage of 3 layers at 6 samples, the "
    "median over its three numbers of microbatches, divided by 3; backward = T_B + T_W, "
    "weight_gradient_share = T_W / (T_B + T_W); one size was measured",
    "derived: overhead_s = 20e9 / (0.73 * 312e12) s per matrix product, from the fit "
    "eff = e0*F/(F + 20 GFLOP), e0 = 0.73 (costmodels.md 6.2, peak 6.1); a layer's forward has 6 "
    "products, its backward 12; the head 1 and 2",
    "derived: the head's times are 2bshV FLOP each for T_F, T_B and T_W at the rates at which a "
    "transformer layer does its sbh(24h+4s), sbh(24h+8s) and 24sbh^2 (ZB Table 1, costmodels.md 7)",
    "derived: the embedding has no matrix product; its time is the 16-bit bytes it moves (forward "
    "3sh per sample: word and position rows read, sum written; backward 5sh: gradient read, both "
    "tables' rows read and written) at 2039 GB/s (A100-80 SXM, costmodels.md 6.1)",
    "vocabulary 51200 and 16-bit training: the paper does not give the former; with it 51200*h "
    "reproduces 90 published memory readings to 1.3-3.5 % (costmodels.md 0, item 7)",
    "gradient_elements exact: 12h^2 + 13h a layer, (V+s)h the embedding, Vh + 2h the head, whose "
    "weight counts apart from the embedding's; parameter_bytes 2 per element (16-bit)",
    "stash: sh(34 + 5as/h) a layer (Korthikanti et al., costmodels.md 7; 2sh of it are the layer's "
    "input, as many as its output), 3sh the embedding (output, dropout mask), 2sh + 4sV the head "
    "(input of the logits; fp32 logits); no recomputation, no flash attention",
    "workspace: 4sV fp32 bytes in the head, the gradient of the logits; none is known for others",
    "cuts: 2sh bytes (16-bit states), before the first layer 8s (64-bit token ids)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of the published stage: medians over the paper's rows of this model."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    sha256: str
    """Of the file they were read from."""

    @property
    def backward_s(self) -> float:
        """Both gradients."""
        return self.input_gradient_s + self.weight_gradient_s


def read_stage_times(facts: Path) -> StageTimes:
    """Reads the rows of the 1.5B model.

    Raises:
        InputError: the file is absent, or has no such rows.
    """
    path = facts / PROFILE
    data = read_bytes(path)
    found = [
        r for r in csv.DictReader(io.StringIO(decode(data, str(path)))) if r["model"] == "1.5B"
    ]
    require(bool(found), "model", [], f"rows of the model 1.5B in {path}")
    expected = {"hidden": H, "seq": S, "heads": A, "mbs": B, "layers_per_mid_stage": 3}
    for row in found:
        for name, value in expected.items():
            if row[name] != str(value):
                raise InputError(name, row[name], str(value), source=str(path))

    def median_s(name: str) -> float:
        return statistics.median(float(row[name]) for row in found) / 1e3

    return StageTimes(
        forward_s=median_s("T_F_ms"),
        input_gradient_s=median_s("T_B_ms"),
        weight_gradient_s=median_s("T_W_ms"),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _curve(seconds: float, gemms: int) -> CostCurve:
    return CostCurve(samples=(B,), seconds=(seconds,), overhead_s=gemms * OVERHEAD_PER_GEMM_S)


def _transformer(i: int, stage: StageTimes) -> Layer:
    elements = 12 * H**2 + 13 * H
    return Layer(
        name=f"transformer.{i}",
        forward=_curve(stage.forward_s / LAYERS_PER_STAGE, FORWARD_GEMMS),
        backward=_curve(stage.backward_s / LAYERS_PER_STAGE, 2 * FORWARD_GEMMS),
        gradient_elements=elements,
        parameter_bytes=elements * BYTES_16,
        stash_bytes_per_sample=34 * S * H + 5 * A * S**2,
        weight_gradient_share=stage.weight_gradient_s / stage.backward_s,
    )


def _embedding() -> Layer:
    moved_s = B * S * H * BYTES_16 / MEMORY_BYTES_PER_S
    elements = (V + S) * H
    return Layer(
        name="embedding",
        forward=_curve(3 * moved_s, 0),
        backward=_curve(5 * moved_s, 0),
        gradient_elements=elements,
        parameter_bytes=elements * BYTES_16,
        stash_bytes_per_sample=S * H * (BYTES_16 + 1),
        weight_gradient_share=1.0,
    )


def _head(stage: StageTimes) -> Layer:
    per_layer_s = 1 / LAYERS_PER_STAGE
    forward_s = stage.forward_s * per_layer_s * LOGITS_FLOP / FORWARD_FLOP
    input_s = stage.input_gradient_s * per_layer_s * LOGITS_FLOP / INPUT_GRADIENT_FLOP
    weight_s = stage.weight_gradient_s * per_layer_s * LOGITS_FLOP / WEIGHT_GRADIENT_FLOP
    elements = V * H + 2 * H
    return Layer(
        name="head",
        forward=_curve(forward_s, 1),
        backward=_curve(input_s + weight_s, 2),
        gradient_elements=elements,
        parameter_bytes=elements * BYTES_16,
        stash_bytes_per_sample=S * H * BYTES_16 + S * V * BYTES_32,
        workspace_bytes_per_sample=S * V * BYTES_32,
        weight_gradient_share=weight_s / (input_s + weight_s),
    )


def build(facts: Path) -> Workload:
    """The workload.

    Raises:
        InputError: the facts are absent or of another form.
    """
    stage = read_stage_times(facts)
    blocks = [_transformer(i, stage) for i in range(NUM_LAYERS)]
    layers = (_embedding(), *blocks, _head(stage))
    return Workload(
        name="gpt-1.5b",
        sample="one sequence of 1024 tokens",
        layers=layers,
        cut_bytes_per_sample=(BYTES_64 * S, *[BYTES_16 * S * H] * (len(layers) - 1), 0),
        provenance=Provenance(
            source="Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241",
            source_sha256=stage.sha256,
            device="NVIDIA A100-80GB SXM",
            notes=NOTES,
        ),
    )


def figures(workload: Workload) -> dict[str, float | int | str]:
    """The workload's totals, by name."""
    embedding, block, head = workload.layers[0], workload.layers[1], workload.layers[-1]
    return {
        "sha256": workload.sha256,
        "layers": len(workload.layers),
        "gradient_elements": sum(layer.gradient_elements for layer in workload.layers),
        "embedding_forward_ms": 1e3 * embedding.forward.at(B),
        "embedding_backward_ms": 1e3 * embedding.backward.at(B),
        "transformer_forward_ms": 1e3 * block.forward.at(B),
        "transformer_backward_ms": 1e3 * block.backward.at(B),
        "transformer_forward_overhead_share": block.forward.overhead_s / block.forward.at(B),
        "transformer_backward_overhead_share": block.backward.overhead_s / block.backward.at(B),
        "transformer_forward_tflop_per_s": FORWARD_FLOP / block.forward.at(B) / 1e12,
        "head_forward_ms": 1e3 * head.forward.at(B),
        "head_backward_ms": 1e3 * head.backward.at(B),
        "stash_gb_at_6_samples": 6e-9 * sum(x.stash_bytes_per_sample for x in workload.layers),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    facts, out = ROOT.parent / "shared" / "facts", Path(__file__).with_name("gpt-1.5b-a100.json")
    parser.add_argument("--facts", type=Path, default=facts, help="default: ../shared/facts")
    parser.add_argument("--out", type=Path, default=out, help="default: beside this script")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    try:
        workload = build(args.facts)
        write_atomic(args.out, pretty_json(workload))
    except AutoplanError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    named = figures(workload)
    if args.json:
        print(pretty_json(named), end="")
    else:
        print("\n".join(f"{name:36} {value}" for name, value in named.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
