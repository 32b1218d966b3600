"""Readers of workload files, one module per format."""

from autoplan.workload.readers.base import Document, Reader, ReadOptions
from autoplan.workload.readers.dnn_partitioning import DnnPartitioningReader
from autoplan.workload.readers.native import NativeReader
from autoplan.workload.readers.pipedream import PipeDreamReader
from autoplan.workload.readers.piper import PiperReader

READERS: tuple[Reader, ...] = (
    NativeReader(),
    PipeDreamReader(),
    PiperReader(),
    DnnPartitioningReader(),
)
"""All formats, in the order in which a file's content is tried on them."""

__all__ = ["READERS", "Document", "ReadOptions", "Reader"]
