"""What a killed driver's Ray leaves behind is ended, whatever session or group it has moved to."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import alive, wait_until

DRIVER = """
import subprocess, sys, time
from autoplan.search.ray_leftovers import Watch
watch = Watch()
child = "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time;\
 time.sleep(600)'], start_new_session=True).pid, flush=True); time.sleep(600)"
with watch.marking():
    first = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(first.pid, other.pid, flush=True)
if sys.argv[1] == "close":
    watch.close()
    print("closed", flush=True)
time.sleep(600)
"""


def started(how):
    """A driver, the marked processes, and one that is not marked."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, how], stdout=subprocess.PIPE)
    numbers = []
    while len(numbers) < 3:
        line = [int(word) for word in driver.stdout.readline().split()]
        numbers += [("marked", n) for n in line[:1]] + [("other", n) for n in line[1:]]
    marked = {number for kind, number in numbers if kind == "marked"}
    return driver, marked, {number for kind, number in numbers if kind == "other"}


def test_marked_processes_end_with_a_killed_driver_and_others_do_not():
    driver, marked, others = started("wait")
    try:
        assert len(marked) == 2
        driver.kill()
        driver.wait()
        wait_until(lambda: not alive(marked), 15, "the marked processes are gone")
        assert alive(others) == others
    finally:
        for number in alive(marked | others):
            os.kill(number, signal.SIGKILL)
        driver.stdout.close()


LATE = """
import os, subprocess, sys, time
from autoplan.search.ray_leftovers import _MARK, Watch
watch = Watch()
late = "import os, sys, time\\n\
while os.getppid() == int(sys.argv[3]): time.sleep(0.02)\\n\
time.sleep(1.5)\\n\
command = [sys.executable, '-c', 'import time; time.sleep(600)']\\n\
os.execve(command[0], command, {sys.argv[1]: sys.argv[2]})"
child = subprocess.Popen([sys.executable, "-c", late, _MARK, watch._token, str(os.getpid())])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_process_that_shows_no_mark_while_it_is_being_started_is_ended_too():
    driver = subprocess.Popen([sys.executable, "-c", LATE], stdout=subprocess.PIPE)
    late = {int(driver.stdout.readline())}
    try:
        driver.kill()
        driver.wait()
        wait_until(lambda: not alive(late), 15, "the late process is gone")
    finally:
        for number in alive(late):
            os.kill(number, signal.SIGKILL)
        driver.stdout.close()


def test_closing_ends_what_is_left_at_once():
    driver, marked, others = started("close")
    try:
        assert driver.stdout.readline() == b"closed\n"
        assert not alive(marked)
        assert alive(others) == others
    finally:
        driver.kill()
        driver.wait()
        for number in alive(marked | others):
            os.kill(number, signal.SIGKILL)
        driver.stdout.close()


def test_the_watcher_inherits_nothing_of_the_environment(monkeypatch):
    from autoplan.search.ray_leftovers import Watch

    monkeypatch.setenv("AUTOPLAN_STORAGE", "sqlite:///secret.db")
    watch = Watch()
    try:
        environment = Path(f"/proc/{watch._process.pid}/environ")
        wait_until(lambda: b"secret" not in environment.read_bytes(), 5, "it has started")
    finally:
        watch.close()
