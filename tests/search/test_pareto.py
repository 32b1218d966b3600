"""Fronts whose points come in any order, and where a front may have more points."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import pytest

from autoplan.search.heuristics import baselines
from autoplan.search.pareto import Front, bands, open_limit
from autoplan.search.proposal import Proposer
from autoplan.search.refine import Scorer


@pytest.fixture
def candidates(experiment):
    """Some candidates, all with figures of their own."""
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    scorer = Scorer(proposer.predictor, experiment.space, math.inf)
    return [scorer.candidate(found.layout) for found in baselines(proposer).values() if found]


def with_figures(candidate, step_s, peak_bytes):
    score = dataclasses.replace(candidate.score, step_s=step_s, peak_bytes=peak_bytes)
    return dataclasses.replace(candidate, score=score)


def test_of_equal_plans_the_same_one_stays_in_any_order(candidates):
    equal = [with_figures(each, 1.0, 2.0) for each in candidates]
    assert len({each.plan for each in equal}) > 1
    kept = set()
    for order in itertools.permutations(equal):
        front = Front(10.0, in_any_order=True)
        for each in order:
            front.add(each)
        assert len(front.points) == 1
        kept.add(front.points[0].plan.sha256)
    assert kept == {min(each.plan.sha256 for each in equal)}


@dataclass
class _Figures:
    peak_bytes: float


@dataclass
class _Point:
    score: _Figures


def points(*peaks):
    return [_Point(_Figures(peak)) for peak in peaks]


def test_bands_cover_all_memory_in_order():
    parts = bands(points(80.0, 40.0, 10.0), 3)
    assert parts[0][0] == 0
    assert parts[-1][1] == math.inf
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert parts[1] == (pytest.approx(20.0), pytest.approx(40.0))
    assert bands(points(80.0), 1) == [(0.0, math.inf)]


def test_a_limit_belongs_to_its_band_and_a_searched_band_has_none():
    front = points(80.0, 10.0)
    for band in bands(front, 3):
        limit = open_limit(front, [], band)
        assert band[0] < limit <= band[1]
        assert open_limit(front, [(band[0], min(band[1], 80.0))], band) is None


def test_without_bands_the_widest_interval_comes_first():
    limit = open_limit(points(80.0, 20.0, 18.0), [])
    assert limit == pytest.approx(math.sqrt(80.0 * 20.0))
    below = open_limit(points(80.0, 20.0, 18.0), [(20.0, limit)])
    assert below == pytest.approx(80.0)
