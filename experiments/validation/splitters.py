"""Cuts as training frameworks make them, each at its best, to compare plans with.

- DeepSpeed's `partition_balanced` (PipelineModule): a recurrence over the number of parts that
  keeps, for every prefix of the layers, the split with the least difference between its heaviest
  and its lightest part, so it is not min-max optimal (facts/planners.md 1.12). DeepSpeed weighs
  layers by parameters or by type; here they weigh the seconds of their forward and backward, which
  is the best that its users can give it.
- Paddle's PipelineLayer with `seg_method="uniform"`: equal numbers of layers, the remainder one by
  one to the last stages.

tests/experiments/test_splitters.py holds both to facts/reference/ref_heuristics.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from autoplan.gradsync.policies import DDP_CAP_BYTES
from autoplan.search.heuristics import Baseline
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

Floats = NDArray[np.float64]
Split = Callable[[Sequence[float], int], tuple[int, ...]]
"""Loads of the layers and a number of stages in; the bounds of the stages out."""


def deepspeed_partition_balanced(loads_L: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Bounds of DeepSpeed's `partition_balanced`.

    Args:
        loads_L: weight of each layer.
        num_stages: at most as many as there are layers.
    """
    prefix_C = np.concatenate([[0.0], np.cumsum(np.asarray(loads_L, dtype=np.float64))])
    last_SC = _last_cuts(prefix_C, num_stages)
    bounds = [len(loads_L)]
    for s in range(num_stages, 0, -1):
        bounds.append(int(last_SC[s, bounds[-1]]))
    return tuple(reversed(bounds))


def paddle_uniform(loads_L: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Bounds of Paddle's `seg_method="uniform"`; it looks at the number of layers only."""
    size, larger = divmod(len(loads_L), num_stages)
    sizes = [size] * (num_stages - larger) + [size + 1] * larger
    return (0, *np.cumsum(sizes).tolist())


SPLITTERS: dict[str, Split] = {
    "deepspeed-balanced": deepspeed_partition_balanced,
    "paddle-uniform": paddle_uniform,
}


def best_with(name: str, proposer: Proposer) -> Baseline | None:
    """The best feasible plan with a splitter's cuts, None where none fits.

    Stages, microbatches and rank orders are tried in all combinations, the replicas are the same
    for every stage and the gradients are in PyTorch DDP's buckets, as in search/heuristics.py.
    """
    predictor = proposer.predictor
    best: Baseline | None = None
    for layout in _layouts(SPLITTERS[name], proposer):
        plan = assemble(layout, predictor, SearchSpace())
        score = predictor.score(plan)
        if score.feasible and (best is None or score.step_s < best.score.step_s):
            best = Baseline(name=name, plan=plan, score=score, layout=layout)
    return best


def best_steps(proposer: Proposer) -> dict[str, float | None]:
    """Step seconds of the best plan of each splitter."""
    found = {name: best_with(name, proposer) for name in SPLITTERS}
    return {name: None if best is None else best.score.step_s for name, best in found.items()}


def _layouts(split: Split, proposer: Proposer) -> Iterator[Layout]:
    """All pipelines of at least two stages that a splitter makes, as `heuristics` makes its own."""
    several = [s for s in proposer.domain.stages if s > 1]
    even = [s for s in several if proposer.num_devices % s == 0]
    for num_stages in even or several:
        for m in proposer.domain.microbatches:
            replicas = proposer.equal_replicas(m, num_stages)
            if replicas == 0:
                continue
            samples = proposer.predictor.job.global_batch // m
            seconds = proposer.predictor.costs.layer_seconds(samples / replicas)
            bounds = split(seconds.forward_s_L + seconds.backward_s_L, num_stages)
            for rank_order in proposer.space.rank_orders:
                yield Layout(
                    bounds=bounds,
                    replicas=(replicas,) * num_stages,
                    microbatches=m,
                    schedule="1f1b",
                    rank_order=rank_order,
                    recompute="never",
                    policy="threshold",
                    cap_bytes=DDP_CAP_BYTES,
                )


@numba.njit  # not cached on disk: a cache is bound to the name that the module was imported by
def _last_cuts(prefix_C: Floats, num_stages: int) -> NDArray[np.int64]:  # pragma: no cover
    """Where the last of s parts of the first c layers begins, S + 1 x C; the later on a tie."""
    cuts = len(prefix_C)
    last_SC = np.zeros((num_stages + 1, cuts), np.int64)
    heaviest_SC = np.full((num_stages + 1, cuts), np.inf)
    lightest_SC = np.full((num_stages + 1, cuts), np.inf)
    heaviest_SC[0, 0] = 0.0
    for s in range(1, num_stages + 1):
        for c in range(s, cuts):
            least = np.inf
            for k in range(s - 1, c if s > 1 else 1):
                load = prefix_C[c] - prefix_C[k]
                heaviest = max(heaviest_SC[s - 1, k], load)
                lightest = min(lightest_SC[s - 1, k], load)
                if heaviest - lightest <= least:
                    least = heaviest - lightest
                    last_SC[s, c] = k
                    heaviest_SC[s, c] = heaviest
                    lightest_SC[s, c] = lightest
    return last_SC
