"""Whether any cuts let a lineup stay within a step time.

A dynamic program walks over the cuts from the first stage to the last with everything that the
stages so far mean for those after: when the first and the last microbatch leave them, and how long
they still work once gradients come back. Axes as in `lineups`; K labels, F fields.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoplan.compiled import compiled
from autoplan.pipeline.lineups import (
    BACKWARD,
    ELEMENTS,
    LEAST,
    SHAPE,
    TABLE,
    Exchanges,
    Floats,
    Ints,
    Lineup,
    Lineups,
    Model,
    Split,
    between,
    cut_ranges,
    receive_s,
    round_trips,
    stage_limits,
    stage_seconds,
    widest,
)

_MOST_LABELS = 12
"""Labels kept per cut; more are merged, which lowers the bound but keeps it valid."""
_FIRST, _LAST, _AFTER_FIRST, _AFTER_LAST, _EXCESS = range(5)
"""What a label holds, least is best: when the first and the last forward leave the stages so far;
seconds from the arrival of the first and of the last gradient to the end of all they do; by how
much the last stage's forward and backward exceed what a pair of stages may take for a period."""
_FIELDS = 5
Label = tuple[float, float, float, float, float]


@compiled
def within(  # pragma: no cover - runs compiled
    model: Model,
    exchanges: Exchanges,
    split: Split,
    lineups: Lineups,
    gpipe: bool,
    step_s: float,
    effort: int,
) -> tuple[NDArray[np.bool_], int]:
    """Which lineups may stay within a step time, and how many stages were looked at.

    All that are left may where the effort is used up.
    """
    may_N = np.ones(lineups.stages_N.size, dtype=np.bool_)
    looked_at = 0
    for n in range(lineups.stages_N.size):
        lineup = Lineup(n, lineups.stages_N[n], widest(lineups, n), gpipe)
        may_N[n], looks = _lineup_within(model, exchanges, split, lineups, lineup, step_s)
        looked_at += looks
        if looked_at > effort:
            may_N[n] = True
            break
    return may_N, looked_at


@compiled
def _lineup_within(  # pragma: no cover - runs compiled
    model: Model,
    exchanges: Exchanges,
    split: Split,
    lineups: Lineups,
    lineup: Lineup,
    step_s: float,
) -> tuple[bool, int]:
    """Whether some cuts may keep a lineup within a step time; how many stages were looked at."""
    low_S, high_S = cut_ranges(model, split, lineups, lineup, step_s)
    if high_S[-1] < 0:
        return False, split.size_bytes_C.size
    layers = split.size_bytes_C.size - 1
    open_SC = np.zeros((lineup.stages + 1, layers + 1), dtype=np.bool_)
    open_SC[0, 0] = True
    open_SC[-1, layers] = True
    times = 2 * split.microbatches if lineup.gpipe else split.microbatches + 1
    trip_s = split.seconds_3RC[LEAST, lineup.widest, layers]
    for s in range(1, lineup.stages):
        for cut in range(low_S[s], high_S[s] + 1):
            receive = receive_s(split, lineups, lineup.row, s, cut)
            open_SC[s, cut] = trip_s + times * receive <= step_s
    ranges = (low_S, high_S)
    return_s_SC, looked_at = round_trips(model, split, lineups, lineup, ranges, open_SC, step_s)
    labels_CKF = np.full((layers + 1, _MOST_LABELS, _FIELDS), -np.inf)
    labels_CKF[0, 0, _FIRST] = 0.0
    labels_CKF[0, 0, _LAST] = 0.0
    count_C = np.zeros(layers + 1, dtype=np.int64)
    count_C[0] = 1
    for s in range(lineup.stages):
        next_CKF = np.empty_like(labels_CKF)
        next_C = np.zeros_like(count_C)
        for i in range(low_S[s], high_S[s] + 1):
            if count_C[i] > 0:
                looked_at += _stages_from(
                    (model, exchanges, split, lineups),
                    lineup,
                    (s, i, high_S[s + 1]),
                    (labels_CKF, count_C),
                    (open_SC, return_s_SC),
                    (next_CKF, next_C),
                    step_s,
                )
        labels_CKF, count_C = next_CKF, next_C
    return count_C[layers] > 0, looked_at


@compiled
def _stages_from(  # pragma: no cover - runs compiled
    costs: tuple[Model, Exchanges, Split, Lineups],
    lineup: Lineup,
    place: tuple[int, int, int],
    reached: tuple[Floats, Ints],
    rest: tuple[NDArray[np.bool_], Floats],
    extended: tuple[Floats, Ints],
    step_s: float,
) -> int:
    """Extends the labels at cut i by every stage [i, j); how many stages were looked at."""
    model, exchanges, split, lineups = costs
    s, i, high = place
    labels_CKF, count_C = reached
    open_SC, return_s_SC = rest
    limits = stage_limits(model, split, lineups, lineup, s)
    receive = receive_s(split, lineups, lineup.row, s, i)
    first = np.inf
    for k in range(count_C[i]):
        first = min(first, labels_CKF[i, k, _FIRST] + receive)
    shape = lineups.indices_N3S[lineup.row, SHAPE, s]
    table = lineups.indices_N3S[lineup.row, TABLE, s]
    left = min(lineup.stages - s, split.microbatches)
    looked_at = 0
    working = 0.0
    exposed = exchanges.last_s_GL[shape, i]
    for j in range(i + 1, high + 1):
        looked_at += 1
        working = max(working, model.working_bytes_L[j - 1])
        memory = (model.received_bytes_C[i], working)
        forward, backward, again = stage_seconds(
            model.sums_3C, split.seconds_3RC, limits, (i, j), memory
        )
        if not first + split.microbatches * (forward + backward) <= step_s:
            break
        elements = model.sums_3C[ELEMENTS, j] - model.sums_3C[ELEMENTS, i]
        if elements > 0:
            # No group with layer j - 1 starts before it is ready, and all layers down to i follow.
            beside = between(split.seconds_3RC, BACKWARD, limits.choice, i, j - 1)
            exposed = max(exposed, _exchange_s(exchanges.lines_GP2, shape, elements) - beside)
        if not open_SC[s + 1, j] or return_s_SC[s, j] == np.inf:
            continue
        finish = backward + exposed
        if table >= 0:
            finish = exchanges.finish_s_TCC[table, i, j] + (forward if again else 0.0)
        finish += elements * model.update_s_per_element
        stage = (receive, forward, backward, finish, return_s_SC[s, j])
        run = (split.microbatches, left, lineup.gpipe, step_s)
        for k in range(count_C[i]):
            looked_at += 1
            end, label = _followed(labels_CKF[i, k], stage, run)
            if end <= step_s:
                _keep(extended, j, label)
    return looked_at


@compiled
def _exchange_s(  # pragma: no cover - runs compiled
    lines_GP2: Floats, shape: int, elements: float
) -> float:
    """Least seconds of the link for so many elements, however grouped."""
    least = np.inf
    for p in range(lines_GP2.shape[1]):
        least = min(least, lines_GP2[shape, p, 0] + lines_GP2[shape, p, 1] * elements)
    return least


@compiled
def _followed(  # pragma: no cover - runs compiled
    label_F: Floats,
    stage: tuple[float, float, float, float, float],
    run: tuple[int, int, bool, float],
) -> tuple[float, Label]:
    """The least step after which all ends if a stage follows, and the label then.

    The stage works like a machine in a row, and so do the links, which carry a microbatch at a
    time: when the first and the last piece leave follows from when they arrive.
    """
    receive, forward, backward, finish, back = stage
    m, left, gpipe, step_s = run
    arrives = label_F[_FIRST] + receive
    last_arrives = max(label_F[_LAST] + receive, label_F[_FIRST] + m * receive)
    first = arrives + forward
    last = max(last_arrives + forward, arrives + m * forward)
    # From the arrival of a gradient on: this stage's own end, or that of the stages before it.
    after_last = max(finish, backward + receive + label_F[_AFTER_LAST])
    after_first = max(
        (m - 1) * backward + after_last,
        backward + receive + label_F[_AFTER_FIRST],
        backward + m * receive + label_F[_AFTER_LAST],
    )
    if gpipe:
        # No backward starts before the last forward has been everywhere.
        return last + back + after_first, (first, last, after_first, after_last, -np.inf)
    both = forward + backward
    end = max(first + back + after_first, last + back + after_last)
    alternating = _alternating_s(forward, backward, back, m, left)
    end = max(end, arrives + alternating + after_last)
    if label_F[_EXCESS] + 2 * receive + both > 0:
        end = np.inf
    excess = -np.inf
    if m > left > 1:
        # Forward m + left goes on to the next stage, before backward m + 2 comes from there: two
        # microbatches for each trip through both stages.
        trips = (m - 1 - left) // 2 + 1
        alone = (m - 1 - left) % 2
        lead = forward + back + alone * both + (left - 2) * backward
        excess = both - (step_s - arrives - lead - after_last) / trips
    return end, (first, last, after_first, after_last, excess)


@compiled
def _alternating_s(  # pragma: no cover - runs compiled
    forward: float, backward: float, back: float, m: int, left: int
) -> float:
    """Least seconds of 1F1B from a stage's first forward to the start of its last backward.

    `back` is the time from a forward to its gradient, `left` the microbatches in flight.
    """
    both = forward + backward
    least = m * forward + (m - 1) * backward
    # Of each `left` microbatches the first returns before the next `left` start.
    rounds = (m - 1) // left
    rest = (m - 1) % left
    between = both if rounds > 0 else max(forward, backward)
    least = max(least, rounds * (both + back) + rest * between + forward + back)
    # After the first gradient has come, what is left is one backward, one forward, and so on.
    least = max(least, forward + back + (m - left) * both + (left - 1) * backward)
    return least


@compiled
def _keep(  # pragma: no cover - runs compiled
    labels: tuple[Floats, Ints], cut: int, label: Label
) -> None:
    """Adds a label to those at a cut if none is as good; merges it with the nearest if full."""
    labels_CKF, count_C = labels
    k = 0
    nearest, least = 0, np.inf
    while k < count_C[cut]:
        as_good = as_bad = True
        distance = 0.0
        for field in range(_FIELDS):
            there, new = labels_CKF[cut, k, field], label[field]
            as_good &= there <= new
            as_bad &= there >= new
            if field != _EXCESS:
                distance += abs(there - new)
        if as_good:
            return
        if as_bad:
            count_C[cut] -= 1
            for field in range(_FIELDS):
                labels_CKF[cut, k, field] = labels_CKF[cut, count_C[cut], field]
            continue
        if distance < least:
            nearest, least = k, distance
        k += 1
    merges = count_C[cut] == _MOST_LABELS
    place = nearest if merges else count_C[cut]
    for field in range(_FIELDS):
        there = labels_CKF[cut, place, field] if merges else np.inf
        labels_CKF[cut, place, field] = min(there, label[field])
    if not merges:
        count_C[cut] += 1
