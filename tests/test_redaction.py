import logging
import pickle
import subprocess
import sys
import warnings

import pytest

from autoplan import redaction
from autoplan.redaction import HIDDEN, RedactingFilter, hide, redacted

SECRET = "correct-horse-7719"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:{}@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:{}@host/db?a=1", "postgresql+psycopg://me:***@host/db?a=1"),
        ("mysql+pymysql://:{}@host", "mysql+pymysql://:***@host"),
        ("host/db?password={}&x=1", "host/db?password=***&x=1"),
        ("host/db?x=1&sslpassword={}", "host/db?x=1&sslpassword=***"),
        ("user=me password={} dbname=x", "user=me password=*** dbname=x"),
        ("user=me password='a {} b' dbname=x", "user=me password=*** dbname=x"),
        ('{{"password": "{}", "user": "me"}}', '{{"password": ***, "user": "me"}}'),
        ("PASSWORD={}", "PASSWORD=***"),
    ],
)
def test_passwords_are_replaced_where_they_are_expected(text, shown):
    unknown = "n3ver-announced"
    assert redacted(text.format(unknown)) == shown.replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////tmp/study.db",
        "postgresql://me@host:5432/db",
        'password authentication failed for user "me"',
        "http://host:8265/jobs",
        "12:30 at the office",
    ],
)
def test_other_text_is_left_alone(text):
    assert redacted(text) == text


def test_an_announced_secret_is_replaced_in_every_spelling():
    secret = "p@ss/w ör\"d'{}"
    hide(secret)
    from urllib.parse import quote, quote_plus

    for spelling in (secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]):
        assert redacted(f"it is {spelling}, she said") == f"it is {HIDDEN}, she said"


def test_a_filter_cleans_message_arguments_and_traceback():
    hide(SECRET)
    try:
        int(SECRET)
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "to %s", (f"me:{SECRET}",), sys.exc_info()
        )
    assert RedactingFilter().filter(record)
    text = logging.Formatter().format(record)
    assert SECRET not in text
    assert "to me:***" in text
    assert "ValueError: invalid literal for int() with base 10: '***'" in text


def test_records_without_secrets_keep_their_arguments():
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%d of %d", (1, 2), None)
    RedactingFilter().filter(record)
    assert record.args == (1, 2)


PROGRAM = f"""
import logging, sys, threading, warnings
from autoplan import redaction
redaction.install()
redaction.install()
redaction.hide({SECRET!r})
logging.basicConfig()
logging.getLogger("some.library").error("lost %s", {SECRET!r})
try:
    raise OSError({SECRET!r})
except OSError:
    logging.getLogger("some.library").exception("again")
warnings.warn({SECRET!r})
thread = threading.Thread(target=lambda: int({SECRET!r}))
thread.start()
thread.join()
class Broken:
    def __del__(self):
        raise RuntimeError({SECRET!r})
Broken()
raise LookupError("key " + {SECRET!r})
"""


def test_logs_warnings_and_tracebacks_of_a_crashing_program_are_clean(tmp_path):
    program = tmp_path / "crash.py"
    program.write_text(PROGRAM.replace(repr(SECRET), "open('secret').read()"))
    (tmp_path / "secret").write_text(SECRET)
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    for words in (
        "ERROR:some.library:lost ***", "OSError: ***", "UserWarning: ***", "ValueError: invalid",
        "RuntimeError: ***", "LookupError: key ***",
    ):  # fmt: skip
        assert words in done.stderr, words


def test_installing_keeps_later_warnings_usable():
    redaction.install()
    with pytest.warns(UserWarning, match="plain"):
        warnings.warn("plain", stacklevel=1)


def test_a_short_secret_does_not_garble_everything():
    hide("a")
    assert redacted("a banana") == "a banana"
    assert pickle.loads(pickle.dumps(redacted("x"))) == "x"
