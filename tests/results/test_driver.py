"""What can be told of the process that searches a study."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest
from processes import wait_until

from autoplan.errors import InputError
from autoplan.results.driver import Driver, Presence

PROGRAM = """
import dataclasses, json, sys
from autoplan.results.driver import Driver
print(json.dumps(dataclasses.asdict(Driver.here())), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other():
    """A process that waits, and what it says of itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, Driver(**json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


def test_this_process_runs_and_each_of_its_searches_has_its_own_token():
    one, two = Driver.here(), Driver.here()
    assert one.presence() is Presence.RUNNING
    assert (one.pid, one.process_start) == (two.pid, two.process_start)
    assert one.pid == os.getpid()
    assert one.token != two.token


def test_a_process_is_seen_to_run_to_be_suspended_and_to_end(other):
    process, driver = other
    assert driver.pid == process.pid
    assert driver.presence() is Presence.RUNNING
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: driver.presence() is Presence.SUSPENDED, 5, "it is suspended")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: driver.presence() is Presence.RUNNING, 5, "it goes on")
    process.kill()
    wait_until(lambda: driver.presence() is Presence.GONE, 5, "it has ended, nobody asked how")
    process.wait()
    assert driver.presence() is Presence.GONE


def test_a_process_that_has_the_number_of_an_earlier_one_is_another(other):
    _, driver = other
    earlier = dataclasses.replace(driver, process_start=driver.process_start - 1)
    assert earlier.presence() is Presence.GONE


@pytest.mark.parametrize("identity", ["", "another boot/pid:[1]"])
def test_nothing_is_known_of_the_processes_of_other_hosts(identity):
    assert dataclasses.replace(Driver.here(), host_identity=identity).presence() is Presence.UNKNOWN


def test_a_process_whose_start_is_not_known_may_be_any(other):
    _, driver = other
    assert dataclasses.replace(driver, process_start=None).presence() is Presence.UNKNOWN


@pytest.mark.parametrize(("field", "value"), [("pid", 0), ("token", "")])
def test_what_no_process_can_be_is_refused(field, value):
    with pytest.raises(InputError, match=field):
        dataclasses.replace(Driver.here(), **{field: value})
