"""What `ideal_stages` computes, by its definition: slow, for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoplan.pipeline.ideal_kernels import ROUNDING
from autoplan.pipeline.ideal_stages import Crossing, StageRules, Units
from autoplan.pipeline.ideals import ideals_of


def best_load_plain(units: Units, rules: StageRules, *, crossing: Crossing | None = None) -> float:
    """The load of `best_stages` by its definition: every chain, every placement."""
    ideals = ideals_of(units.precedence)
    assert ideals is not None
    table = ideals.member_table(units.precedence.num_units)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in table]
    crossing_s = np.zeros(len(sets)) if crossing is None else crossing(ideals)
    sent_s = dict(zip(sets, crossing_s.tolist(), strict=True))

    def least(done: frozenset[int], used: int, hosts: int) -> float:
        """The least largest load of what is not done yet."""
        if len(done) == units.precedence.num_units:
            return 0.0
        loads = [math.inf]
        for larger in sets:
            if not done < larger:
                continue
            stage = sorted(larger - done)
            if hosts < rules.hosts:
                on_host = float(units.array("host_s_N")[stage].sum())
                loads.append(max(on_host, least(larger, used, hosts + 1)))
            sent = max(sent_s[done], sent_s[larger]) if done else 0.0
            for option, each in enumerate(rules.replicas):
                if used + each <= rules.devices:
                    load = _load_plain(units, rules, stage, option, used, first=not done)
                    load = max(load, sent / each)
                    loads.append(max(load, least(larger, used + each, hosts)))
        return min(loads)

    return least(frozenset(), 0, 0)


def _load_plain(
    units: Units, rules: StageRules, stage: Sequence[int], option: int, used: int, *, first: bool
) -> float:
    """The load of a stage of units without what overlaps; infinite where it does not fit."""
    each = rules.replicas[option]
    members = set(stage)
    seconds = float(units.compute_s_N[stage].sum())
    for tensor in units.tensors:
        ends = {tensor.producer, *tensor.consumers}
        if ends & members and ends - members:
            seconds += tensor.seconds
    held = rules.held(used + each, each) if rules.held is not None else 0
    need = units.array("fixed_bytes_N") + held * units.array("held_bytes_N")
    excess = float(need[stage].sum()) - rules.limit_bytes * (1 + ROUNDING)
    saved = units.array("saved_fixed_bytes_N") + held * units.array("saved_held_bytes_N")
    price = units.array("recompute_s_N")
    by_price = sorted((u for u in stage if saved[u] > 0), key=lambda u: price[u] / saved[u])
    while excess > 0:
        if not by_price:
            return math.inf
        if saved[by_price[0]] >= excess:
            seconds += min(price[u] for u in by_price if saved[u] >= excess)
            break
        unit = by_price.pop(0)
        seconds, excess = seconds + price[unit], excess - saved[unit]
    times = rules.gradient_s_per_byte
    if first and rules.first_gradient_s_per_byte is not None:
        times = rules.first_gradient_s_per_byte
    parameters = float(units.array("parameter_bytes_N")[stage].sum())
    return seconds / each + parameters * times[option]
