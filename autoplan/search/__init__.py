"""The search: which plan of a space is fastest. Calling this module runs `search`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Lets `autoplan.search(experiment)` name both this package and its main function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from autoplan.search.run import search

        return search(*args, **options)


sys.modules[__name__].__class__ = _Callable
