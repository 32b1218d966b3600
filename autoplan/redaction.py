"""Keeps passwords out of everything that is printed, logged or dumped.

A password is known in two ways: it was announced with `hide`, or it stands where one is expected
(in a URL before the host, or as the value of a key such as `password`). Both are replaced by ***.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"

SECRET_KEYS = frozenset({"password", "sslpassword", "passwd"})
"""Keys of a URL's query, or of a connection string, whose values are never shown."""

_SHORTEST = 3
"""Shorter secrets are only hidden where a password is expected: they occur in any text."""
_IN_URL = re.compile(r"(?P<head>[A-Za-z][\w+.-]*://[^\s:/@?#]*):[^\s@/]*(?:/[^\s@/]*)*?@")
_AS_VALUE = re.compile(
    rf"(?P<key>\b(?:{'|'.join(sorted(SECRET_KEYS))})\b['\"]?\s*[=:]\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&'\",;)\]}]+)",
    re.IGNORECASE,
)

_secrets: set[str] = set()


def hide(secret: str) -> None:
    """Announces a secret: `redacted` replaces it from now on, in all its usual spellings.

    From then on the system writes no core dump of this process either, nor of those that it
    starts: it would hold the secret like all of their memory.
    """
    if len(secret) >= _SHORTEST:
        _secrets.update((secret, quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]))
    with contextlib.suppress(ImportError):  # a system without such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def redacted(text: str) -> str:
    """The text without passwords."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _IN_URL.sub(rf"\g<head>:{HIDDEN}@", text)
    return _AS_VALUE.sub(rf"\g<key>{HIDDEN}", text)


class RedactingFilter(logging.Filter):
    """Lets every record pass, without the passwords in its message and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrites the record in place."""
        message = _message(record)
        if (clean := redacted(message)) != message:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
            record.exc_text = redacted(text)
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # the caller's arguments do not fit the caller's format
        return f"{record.msg} {record.args}"


_installed = False


def install() -> None:
    """Redacts all log records, warnings and tracebacks of this process; once is enough."""
    global _installed
    if _installed:
        return
    _installed = True
    _redact_records()
    _redact_warnings()
    sys.excepthook = _print_exception
    threading.excepthook = _print_thread_exception
    sys.unraisablehook = _print_unraisable


def _redact_records() -> None:
    """Filters of a logger miss its children's records, so records are filtered where they arise."""
    make, redacting = logging.getLogRecordFactory(), RedactingFilter()

    def factory(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        redacting.filter(record)
        return record

    logging.setLogRecordFactory(factory)


def _redact_warnings() -> None:
    plain: Callable[..., str] = warnings.formatwarning

    def formatted(*args: Any, **options: Any) -> str:
        return redacted(plain(*args, **options))

    warnings.formatwarning = formatted


def _print_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    print(redacted(text), end="", file=sys.stderr)


def _print_thread_exception(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    name = failed.thread.name if failed.thread else "?"
    print(f"Exception in thread {name}:", file=sys.stderr)
    _print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _print_unraisable(failed: sys.UnraisableHookArgs) -> None:
    if failed.exc_value is not None:
        print("Exception ignored:", file=sys.stderr)
        _print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
