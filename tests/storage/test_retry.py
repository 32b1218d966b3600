import time

import pytest

from autoplan.errors import InputError
from autoplan.storage.retry import RetryPolicy


class Flaky:
    """Fails a number of times."""

    def __init__(self, failures, error=None):
        self.failures, self.error, self.calls = failures, error or OSError("away"), 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "done"


FAST = RetryPolicy(budget_s=5, first_wait_s=0.001, longest_wait_s=0.002)


def test_work_is_tried_until_it_succeeds():
    work = Flaky(6)
    assert FAST.run(work, lambda error: True) == "done"
    assert work.calls == 7


def test_an_error_that_does_not_pass_is_raised_at_once():
    work = Flaky(1, ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        FAST.run(work, lambda error: not isinstance(error, ValueError))
    assert work.calls == 1


def test_the_budget_ends_the_tries():
    work = Flaky(10**9)
    started_s = time.monotonic()
    with pytest.raises(OSError, match="away"):
        RetryPolicy(budget_s=0.3, first_wait_s=0.01, longest_wait_s=0.05).run(work, lambda e: True)
    assert 0.25 < time.monotonic() - started_s < 5
    assert work.calls > 3


def test_no_budget_means_one_try():
    work = Flaky(1)
    with pytest.raises(OSError, match="away"):
        RetryPolicy(budget_s=0).run(work, lambda error: True)
    assert work.calls == 1


def test_waits_grow_and_are_random():
    waits = [[], []]
    for kept in waits:
        last_s = time.monotonic()

        def work(kept=kept):
            nonlocal last_s
            now_s = time.monotonic()
            kept.append(now_s - last_s)
            last_s = now_s
            if len(kept) < 5:
                raise OSError

        RetryPolicy(budget_s=5, first_wait_s=0.02, longest_wait_s=0.2).run(work, lambda e: True)
    for kept in waits:
        assert kept[4] > kept[1]
    assert waits[0] != waits[1]


def test_a_wall_clock_set_back_changes_nothing(monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert FAST.run(Flaky(3), lambda error: True) == "done"


def test_an_interruption_is_not_retried():
    work = Flaky(1, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        FAST.run(work, lambda error: True)
    assert work.calls == 1


@pytest.mark.parametrize("budget_s", [-1, float("nan"), float("inf")])
def test_budgets_are_finite(budget_s):
    with pytest.raises(InputError, match="budget_s"):
        RetryPolicy(budget_s=budget_s)
