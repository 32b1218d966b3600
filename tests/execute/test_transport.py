from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from autoplan.execute.collectives import RingCollective
from autoplan.execute.sockets import accept, connect, listen
from autoplan.execute.transport import Message, PostOffice


@pytest.fixture(params=["unix", "tcp"])
def offices(request, tmp_path):
    """Three ranks in one process."""
    host = "127.0.0.1" if request.param == "tcp" else None
    made = [PostOffice(rank, tmp_path, "secret", host) for rank in range(3)]
    for office in made:
        office.introduce(tuple(each.address for each in made))
    assert all(office.address.startswith(request.param) for office in made)
    return made


def test_arrays_of_all_kinds_arrive_as_they_were(offices):
    sent = (
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        None,
        np.array(7, dtype=np.int64),
        np.zeros((2, 0), dtype=bool),
    )
    message = Message(arrays=sent, needs_gradient=(True, False, False, False), arrival_s=1.5)
    offices[0].send(2, "forward", message)
    found = offices[2].receive(0, "forward")
    assert (found.needs_gradient, found.arrival_s) == (message.needs_gradient, 1.5)
    assert found.arrays[1] is None
    for one, other in zip(sent, found.arrays, strict=True):
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_both_may_send_much_before_either_receives(offices):
    large = np.ones(2_000_000, np.float32)
    for _ in range(3):
        offices[0].send(1, "forward", Message(arrays=(large,)))
        offices[1].send(0, "backward", Message(arrays=(large,)))
    for _ in range(3):
        assert offices[1].receive(0, "forward").arrays[0].sum() == 2_000_000
        assert offices[0].receive(1, "backward").arrays[0].sum() == 2_000_000


def test_a_held_message_takes_its_time_and_keeps_the_next_one_waiting(offices):
    started_s = time.monotonic()
    for _ in range(2):
        offices[0].send(1, "forward", Message(arrays=()), hold_s=0.1)
    sent_s = time.monotonic() - started_s
    arrived_s = []
    for _ in range(2):
        offices[1].receive(0, "forward")
        arrived_s.append(time.monotonic() - started_s)
    assert sent_s < 0.09
    assert 0.1 <= arrived_s[0] < arrived_s[1]
    assert arrived_s[1] >= 0.2


def test_nobody_joins_without_the_token(tmp_path):
    listener, address = listen(tmp_path, "door")
    stranger = connect(address, "guess", {"rank": 0})
    assert accept(listener, "secret") is None
    friend = connect(address, "secret", {"rank": 4})
    found = accept(listener, "secret")
    assert found is not None
    assert found[1] == {"rank": 4}
    for stream in (stranger, friend, found[0], listener):
        stream.close()


def test_a_long_folder_name_falls_back_to_loopback(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    listener, address = listen(deep, "door")
    listener.close()
    assert address.startswith("tcp:127.0.0.1:")


def together(offices, call):
    """Runs a call on every rank at the same time; what each returns."""
    found = {}

    def run(office):
        found[office.rank] = call(office)

    threads = [threading.Thread(target=run, args=(office,)) for office in offices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[office.rank] for office in offices]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_a_ring_adds_up_the_same_on_all_of_its_members(offices, size):
    rng = np.random.default_rng(size)
    buffers = [rng.standard_normal(size).astype(np.float32) for _ in offices]
    expected = np.sum(np.array(buffers, np.float64), axis=0)

    def add(office):
        buffer = buffers[office.rank].copy()
        RingCollective(office, (0, 1, 2)).sum_in_place(buffer)
        return buffer

    first, *others = together(offices, add)
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-5)
    for other in others:
        assert first.tobytes() == other.tobytes()


def test_a_ring_of_some_ranks_gathers_their_rows_in_order(offices):
    members = (0, 2)

    def gather(office):
        return RingCollective(office, members).gather(np.array([office.rank, 5], np.int32))

    for rows in together([offices[0], offices[2]], gather):
        np.testing.assert_array_equal(rows, [[0, 5], [2, 5]])
