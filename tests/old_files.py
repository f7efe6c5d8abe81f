"""Files as the first version of the format wrote them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch

PAGE = 4_096


def format_1(kind: str, meta: Mapping[str, Any], sections: Mapping[str, torch.Tensor]) -> bytes:
    """A file as the first version wrote it, byte by byte: one line of header, then sections."""
    body, at, entries = bytearray(), PAGE, []
    for name, tensor in sections.items():
        body += bytes(-len(body) % 64)
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        entry = {"name": name, "dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape)}
        entry |= {"offset": at + len(body), "nbytes": len(raw), "crc": f"{zlib.crc32(raw):08x}"}
        entries.append(entry)
        body += raw
    body += bytes(-len(body) % PAGE)
    said = {"kind": kind, "meta": meta, "nbytes": PAGE + len(body), "sections": entries}
    text = json.dumps(said).encode()
    start = b"MOORAGE\0" + b"\1\0\0\0" + b"\1\0\0\0" + len(text).to_bytes(4, "little")
    start += zlib.crc32(text).to_bytes(4, "little")
    start += zlib.crc32(start).to_bytes(4, "little") + b"\0\0\0\0"
    return (start + text).ljust(PAGE, b"\0") + bytes(body)
