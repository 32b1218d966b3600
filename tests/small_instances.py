"""Experiments so small that all their plans can be looked at."""

import dataclasses
import itertools
import math

from builders import random_cluster, random_job, random_workload

from autoplan.search.experiment import Budget, Experiment
from autoplan.search.layout import Layout, assemble
from autoplan.search.proposal import Proposer
from autoplan.search.space import SearchSpace

SPACE = SearchSpace(recompute=("never", "where-needed"))


def every_layout(proposer):
    """All layouts: partitions, replicas, microbatches, schedules, rank orders, recomputation."""
    domain, space, layers = proposer.domain, proposer.space, proposer.num_layers
    for m, stages in itertools.product(domain.microbatches, domain.stages):
        choices = domain.replicas_for(proposer.predictor.job.global_batch // m)
        for replicas in itertools.product(choices, repeat=stages):
            if sum(replicas) > proposer.num_devices:
                continue
            for cuts, schedule, order, recompute, policy in itertools.product(
                itertools.combinations(range(1, layers), stages - 1),
                space.schedules,
                space.rank_orders,
                space.recompute,
                ("exact", "single", "layerwise"),
            ):
                yield Layout(
                    bounds=(0, *cuts, layers),
                    replicas=replicas,
                    microbatches=m,
                    schedule=schedule,
                    rank_order=order,
                    recompute=recompute,
                    policy=policy,
                    cap_bytes=1.0,
                )


def every_score(experiment):
    """Scores of all plans that fit, and their policies."""
    proposer = Proposer(experiment.workload, experiment.cluster, experiment.job, experiment.space)
    predictor = proposer.predictor
    for layout in every_layout(proposer):
        score = predictor.score(assemble(layout, predictor, experiment.space))
        if score.feasible:
            yield layout.policy, score


def random_experiment(rng, folder, **changes):
    """At most five layers on at most six devices."""
    model = random_workload(rng, max_layers=5)
    where = random_cluster(rng, max_nodes=2)
    job = dataclasses.replace(random_job(rng), global_batch=rng.choice([2, 4, 6]))
    return Experiment(
        name="random",
        workload=model,
        cluster=where,
        job=job,
        space=SPACE,
        budget=Budget(trials=40, seconds=60.0),
        output=folder,
        **changes,
    )


def front_of(points):
    """The points that none beats, the fastest first."""
    best, least = [], math.inf
    for step_s, peak_bytes in sorted(points):
        if peak_bytes < least * (1 - 1e-8):
            best.append((step_s, peak_bytes))
            least = peak_bytes
    return best


def every_front(experiment):
    """The front of all plans, with the groups that end first."""
    return front_of(
        (score.step_s, score.peak_bytes)
        for policy, score in every_score(experiment)
        if policy == "exact"
    )
