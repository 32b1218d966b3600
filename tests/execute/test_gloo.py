"""Gloo groups of every size among four processes, which Paddle's own start cannot connect."""

import itertools
import multiprocessing
import queue

import numpy as np

RANKS = 4
GROUPS = [g for n in range(2, RANKS + 1) for g in itertools.combinations(range(RANKS), n)]


def rank_process(rank, folder, addresses, answers):
    """Connects one rank to its groups, and sums and gathers over each of them."""
    from pathlib import Path

    from autoplan.execute.gloo import gloo_collectives
    from autoplan.execute.transport import PostOffice

    post = PostOffice(rank, Path(folder), "token")
    answers.put((rank, post.address))
    post.introduce(addresses.get(timeout=60))
    endpoints = ("127.0.0.1:0",) * RANKS
    found = {}
    for members, collective in gloo_collectives(GROUPS, post, endpoints).items():
        buffer = np.full(5, 10.0**rank, np.float32)
        collective.sum_in_place(buffer)
        rows = collective.gather(np.full(3, rank, np.int32))
        found[members] = (buffer.tolist(), rows.tolist())
    answers.put((rank, found))


def answered(answers):
    """What each of the ranks says next."""
    try:
        return dict(answers.get(timeout=90) for _ in range(RANKS))
    except queue.Empty:
        return None


def test_all_groups_of_four_ranks_are_connected_whatever_their_size(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers, addresses = context.Queue(), [context.Queue() for _ in range(RANKS)]
    processes = [
        context.Process(target=rank_process, args=(rank, tmp_path, addresses[rank], answers))
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            process.start()
        listening = answered(answers)
        for each in addresses:
            each.put(tuple(listening[rank] for rank in range(RANKS)))
        found = answered(answers)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert found is not None, "a group was not connected"
    for rank in range(RANKS):
        assert set(found[rank]) == {members for members in GROUPS if rank in members}
        for members, (total, rows) in found[rank].items():
            assert total == [sum(10.0**each for each in members)] * 5
            assert rows == [[each] * 3 for each in members]
