"""Where experiments are kept: database URLs without leaks, connections, retries."""

from autoplan.storage.url import Storage

__all__ = ["Storage"]
