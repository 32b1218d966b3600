"""What a search ran on, as it is kept with the experiment."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("autoplan", "numpy", "numba", "optuna", "ray", "sqlalchemy")


def own_version() -> str:
    """The version of autoplan, or "unknown" where it is not installed."""
    return _version("autoplan")


def environment() -> dict[str, Any]:
    """Versions and the machine; nothing that names a person."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
