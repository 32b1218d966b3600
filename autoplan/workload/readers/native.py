"""autoplan's own workload files."""

from __future__ import annotations

import dataclasses

from autoplan import documents
from autoplan.errors import InputError, words
from autoplan.workload.model import SCHEMA, Workload
from autoplan.workload.readers.base import Document, ReadOptions


class NativeReader:
    """JSON of a `Workload`, field by field."""

    format = f"autoplan's own JSON ({SCHEMA})"

    def matches(self, document: Document) -> bool:
        """Whether it is a JSON object with autoplan's schema, of whatever version."""
        return document.has_keys("schema") and "workload" in str(document.value["schema"])

    def read(self, document: Document, options: ReadOptions) -> Workload:
        """Builds the workload as it was written, its provenance included.

        Raises:
            InputError: a field is wrong, or an option says what the file says already.
        """
        default = ReadOptions()
        for field in dataclasses.fields(options):
            given = getattr(options, field.name)
            if given != getattr(default, field.name):
                allowed = f"nothing: a file of {SCHEMA} states it itself"
                raise InputError(field.name, given, allowed, source=document.source)
        try:
            return documents.build_json(Workload, document.data, document.source)
        except OverflowError:
            # JSON has integers of any size, and what a layer checks of its own is a float.
            found = words("an integer of more than 308 digits")
            raise InputError("layers", found, "numbers that fit a float") from None
