"""How a record's field states its Arrow type and its meaning; see :mod:`pivotopd.records`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import pyarrow as pa

INT32 = pa.int32()
INT64 = pa.int64()
FLOAT = pa.float32()
DOUBLE = pa.float64()
TEXT = pa.string()
BYTES = pa.binary()
BOOL = pa.bool_()
IDS = pa.list_(pa.field("item", pa.int32(), nullable=False))
NATS = pa.list_(pa.field("item", pa.float32(), nullable=False))
TEXTS = pa.list_(pa.field("item", pa.string(), nullable=False))


def column(kind: pa.DataType, doc: str, *, nullable: bool = False) -> Any:
    """Declare a field of a record: its Arrow type, its meaning, and whether it may be null."""
    return field(metadata={"arrow": kind, "doc": doc, "nullable": nullable})
