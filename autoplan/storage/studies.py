"""Optuna's tables in the experiment database, so that its own tools open it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoplan.storage.engine import engine_options
from autoplan.storage.failures import lost_race, passes, storage_errors
from autoplan.storage.retry import DEFAULT_RETRY, RetryPolicy
from autoplan.storage.url import Storage

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


def study_storage(storage: Storage, retry: RetryPolicy = DEFAULT_RETRY) -> RDBStorage:
    """Optuna's view of a database, its tables made; any number of programs may do so at once.

    The result holds the password, in its pickle too: it stays in the driver.

    Raises:
        InputError: the driver is not installed.
        StorageError: the database cannot be used.
    """
    from optuna.storages import RDBStorage

    # Optuna takes braces for a template.
    url = storage.url.render_as_string(hide_password=False)
    url = url.replace("{", "{{").replace("}", "}}")
    with storage_errors(storage):
        return retry.run(
            lambda: RDBStorage(url, engine_kwargs=engine_options(storage)),
            lambda error: passes(error) or lost_race(error),
        )
