import os
import signal
import threading

import pytest

from autoplan.search.interrupts import Interrupts, SecondInterruptError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_one_raises(number):
    with Interrupts() as interrupts:
        assert not interrupts.requested
        os.kill(os.getpid(), number)
        assert interrupts.requested
        with pytest.raises(SecondInterruptError):
            os.kill(os.getpid(), number)


def test_a_first_signal_that_raises_is_noted_where_it_is_swallowed():
    with Interrupts(raising=True) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.requested


def test_signals_are_given_back_even_where_a_library_took_them_meanwhile():
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        interrupts.take_over()
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested
    assert signal.getsignal(signal.SIGTERM) == before


def test_other_threads_change_no_signal():
    before = signal.getsignal(signal.SIGINT)

    def enter():
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    seen = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
