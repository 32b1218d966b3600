from __future__ import annotations

import time

import numpy as np
import pytest

from autoplan.errors import InputError
from autoplan.workload.cost_curve import CostCurve
from autoplan.workload.graph import Graph, Tensor, chain
from autoplan.workload.model import Layer
from autoplan.workload.stage_loads import Transfer, loads_of, stage_loads


def counted(compute_s_L, transfers, i, j):
    """Computing, receiving and sending of stage [i, j), tensor by tensor."""
    inside = set(range(i, j))
    received = sent = 0.0
    for transfer in transfers:
        readers = set(transfer.consumers)
        if transfer.producer in inside:
            sent += transfer.seconds if readers - inside else 0
        else:
            received += transfer.seconds if readers & inside else 0
    return sum(compute_s_L[i:j]), received, sent


def random_transfers(rng, layers, backward):
    """Tensors of a random graph; with `backward` some are read before the place they come from."""
    transfers = []
    for _ in range(int(rng.integers(0, 3 * layers))):
        places = rng.choice(layers, int(rng.integers(1, min(layers, 4) + 1)), replace=False)
        if not backward:
            places = np.sort(places)
        producer, *consumers = map(int, places)
        seconds = float(rng.integers(0, 5)) if rng.random() < 0.5 else float(rng.random())
        transfers.append(
            Transfer(producer=producer, consumers=tuple(consumers), seconds=seconds),
        )
    return transfers


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("seed", range(50))
def test_equals_a_count_tensor_by_tensor(seed, backward):
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 12))
    compute_s_L = list(rng.random(layers))
    transfers = random_transfers(rng, layers, backward)
    loads = loads_of(compute_s_L, transfers)
    three = np.stack([loads.compute_s_CC, loads.received_s_CC, loads.sent_s_CC])
    for i in range(layers + 1):
        for j in range(layers + 1):
            expected = counted(compute_s_L, transfers, i, j) if i < j else (0, 0, 0)
            assert three[:, i, j] == pytest.approx(expected, rel=1e-12, abs=0)
            assert loads.under("sum")[i, j] == pytest.approx(sum(expected), rel=1e-12, abs=0)
            assert loads.under("max")[i, j] == pytest.approx(max(expected), rel=1e-12, abs=0)
    assert loads.under("compute") is loads.compute_s_CC
    assert loads.received_s_CC[0, -1] == loads.sent_s_CC[0, -1] == 0


def layer(name, seconds):
    return Layer(
        name=name,
        forward=CostCurve.proportional(seconds, 2),
        backward=CostCurve.proportional(2 * seconds, 2),
    )


GRAPH = Graph(
    layers=(layer("d", 8), layer("a", 1), layer("b", 2), layer("c", 4)),
    tensors=(
        Tensor(producer="a", consumers=("c", "b", "d"), bytes_per_sample=10),
        Tensor(producer="b", consumers=("c",), bytes_per_sample=1),
        Tensor(producer="c", consumers=("d",), bytes_per_sample=100),
        Tensor(producer="d", consumers=(), bytes_per_sample=1e6),
    ),
)


def test_a_graph_in_an_order_of_its_own():
    order = chain(GRAPH).order
    assert order == (1, 2, 3, 0)
    loads = stage_loads(GRAPH, order, samples=4, bytes_per_s=8)
    # Four samples at eight bytes/s, both ways: bytes per sample are seconds.
    assert loads.compute_s_CC[0].tolist() == [0, 6, 18, 42, 90]
    assert loads.compute_s_CC[1].tolist() == [0, 0, 12, 36, 84]
    assert loads.received_s_CC[1].tolist() == [0, 0, 10, 10, 10]
    assert loads.received_s_CC[2].tolist() == [0, 0, 0, 11, 11]
    assert loads.received_s_CC[3].tolist() == [0, 0, 0, 0, 110]
    assert loads.sent_s_CC[0].tolist() == [0, 10, 11, 110, 0]
    # What a made passes by b's stage and is not charged to it.
    assert loads.sent_s_CC[1].tolist() == [0, 0, 1, 100, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": (0, 1, 2)}, "order: found 3 indices; allowed: each of 0 to 3 once"),
        ({"order": (0, 1, 2, 2)}, "order: found 4 indices; allowed: each of 0 to 3 once"),
        ({"samples": 0}, "samples: found 0; allowed: a finite number above 0"),
        ({"bytes_per_s": float("inf")}, "bandwidth in bytes/s: found inf; allowed: a finite"),
    ],
)
def test_bad_input_is_refused(changes, message):
    arguments = {"order": (0, 1, 2, 3), "samples": 1, "bytes_per_s": 1} | changes
    with pytest.raises(InputError, match=f"^{message}"):
        stage_loads(GRAPH, **arguments)


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        (Transfer(producer=2, consumers=(0,), seconds=1), r"transfers\[0\]: found \[2\]; allowed"),
        (Transfer(producer=0, consumers=(-1,), seconds=1), r"transfers\[0\]: found \[-1\]; allow"),
        (Transfer(producer=0, consumers=(1,), seconds=-1), r"transfers\[0\].seconds: found -1;"),
    ],
)
def test_transfers_that_make_no_sense_are_refused(transfer, message):
    with pytest.raises(InputError, match=f"^{message}"):
        loads_of([1.0, 1.0], [transfer])


def test_two_thousand_layers_take_less_than_two_seconds():
    rng = np.random.default_rng(0)
    transfers = [
        Transfer(producer=i, consumers=(i + 1, min(i + 50, 2011), 2011), seconds=1.0)
        for i in range(2011)
    ]
    start_s = time.process_time()
    loads = loads_of(list(rng.random(2012)), transfers)
    loads.under("sum")
    assert time.process_time() - start_s < 2
