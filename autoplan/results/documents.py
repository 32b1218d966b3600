"""Documents from the database, held to the hash under which they were stored."""

from __future__ import annotations

from typing import Any

from autoplan.documents import build_json, json_value
from autoplan.errors import InputError, StorageError
from autoplan.plan import Plan


def stored_plan(text: str, sha256: str, shown: str) -> Plan:
    """The plan of a row of `plans`.

    Args:
        text: its JSON.
        sha256: its key.
        shown: the database, for messages.

    Raises:
        StorageError: it is not the plan that was stored.
    """
    try:
        plan = build_json(Plan, text.encode(), shown)
    except (InputError, AttributeError, UnicodeError):
        plan = None
    if plan is None or plan.sha256 != sha256:
        raise StorageError(
            f"{shown}: plan {sha256[:12]} is damaged and was left as it was; restore a copy"
        )
    return plan


def stored_object(text: str, shown: str) -> dict[str, Any]:
    """A JSON object from the database `shown`; raises StorageError where it is none."""
    try:
        value = json_value(text.encode(), shown)
    except (InputError, AttributeError, UnicodeError):
        value = None
    if not isinstance(value, dict):
        raise StorageError(f"{shown}: a row is damaged and was left as it was; restore a copy")
    return value
