"""The manifest of an entry: everything that is known of it, in the file that makes it one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from cache.account import Account, End
from cache.anchors import Anchor, AnchorConfig, Anchors
from cache.format import Bad, Header, Layout, Part, read_header, unsealed
from cache.ports import Files
from cache.saving import said
from cache.spill.entry import Block, Copy, Entry, Piece
from cache.spill.names import MANIFEST, key_of, manifest_name
from cache.spill.shapes import Shapes
from cache.spill.sums import Sums
from cache.spill.values import plain, told
from cache.types import Gate, Generation, Ids, Valued

IDS = "ids"
_NONE = AnchorConfig(budget_bytes=0, newest_kept=1)
_REGIONS = ("tools", "system", "prompt")
_SENSELESS = (KeyError, TypeError, ValueError, AssertionError, OverflowError, AttributeError)


def image_of(entry: Entry, shapes: Shapes, files: Files) -> memoryview:
    """An entry's manifest, sealed. Raises OSError or MemoryError where there is no memory."""
    account = entry.account
    assert account is not None
    layout = Layout(MANIFEST, _meta(entry, account, shapes), (_ids_part(account.valid),))
    buffer = files.buffer(layout.nbytes)
    layout.tensors(buffer)[0].copy_(torch.from_numpy(account.ids))
    return layout.seal(buffer)


def read_manifest(
    files: Files, name: str, shapes: Shapes, accepted: Collection[str]
) -> Entry | Bad:
    """The entry of a manifest, if it is whole and of rows that this engine would compute.

    Nothing is said of the files that it names.
    """
    header = read_header(files, name)
    if isinstance(header, Bad):
        return header
    if header.kind != MANIFEST:
        return Bad("it is another file than its name says")
    if header.meta.get("fingerprint") not in accepted:
        return Bad("fingerprint")
    try:
        image = _image(files, name, header.nbytes)
    except (OSError, MemoryError) as error:
        why = said(error) if isinstance(error, OSError) else "memory"
        return Bad(f"cannot be read: {why}", error=why)
    try:
        layout = Layout(MANIFEST, header.meta, (_ids_part(_count(header.meta["valid"])),))
        if why := unsealed(header, image, layout):
            return Bad(why)
        if header.meta["buffers"] != shapes.described():
            return Bad("layout")
        if header.meta["block_rows"] != shapes.block_rows or header.meta["grid"] != shapes.grid:
            return Bad("layout")
        entry = _entry(header, layout.tensors(image)[0].numpy().copy(), shapes)
        if manifest_name(entry.key) != name:
            return Bad("it is another file than its name says")
        return entry
    except _SENSELESS as error:
        return Bad(f"it makes no sense: {type(error).__name__} {error}")


def described(account: Account, copies: Sequence[Copy]) -> Account:
    """An account of the same rows whose anchors and end are those in files.

    Of a prompt that broke off in its prefill no more is told than the rows that came of it.
    """
    anchors = [Anchor(c.tokens, c.gate, (), c.kind) for c in copies if c.kind != "end"]
    ends = [End(copy.tokens, ()) for copy in copies if copy.kind == "end"]
    return replace(
        account,
        buffer=account.ids.copy(),
        anchors=Anchors.of(_NONE, anchors),
        end=ends[0] if ends else None,
        **{name: min(getattr(account, name), account.valid) for name in _REGIONS},
        generations=list(account.generations),
        coming=[],
        known=None,
    )


def _image(files: Files, name: str, nbytes: int) -> memoryview:
    """Up to `nbytes` of a file. Raises OSError and MemoryError."""
    image, handle = files.buffer(nbytes), files.open(name)
    try:
        return image[: files.start_read(handle, 0, image[:nbytes]).wait()]
    finally:
        files.close(handle)


def _ids_part(count: int) -> Part:
    return Part(IDS, torch.int32, (count,))


def _meta(entry: Entry, account: Account, shapes: Shapes) -> dict[str, Any]:
    return {
        "fingerprint": shapes.fingerprint,
        "entry": f"{entry.key:016x}",
        "grid": shapes.grid,
        "block_rows": shapes.block_rows,
        "buffers": shapes.described(),
        "session": entry.session,
        "valid": account.valid,
        "taint": account.taint,
        "kind": account.kind,
        "tools": account.tools,
        "system": account.system,
        "prompt": account.prompt,
        "generations": [_generation(generation) for generation in account.generations],
        "blocks": [[block.start, block.stop, *_piece(block.piece)] for block in entry.blocks],
        "copies": [[c.tokens, c.kind, int(c.gate), *_piece(c.piece)] for c in entry.copies],
        "used_s": entry.used_s,
    }


def _piece(piece: Piece) -> list[Any]:
    return [piece.name, piece.nbytes, [[f"{a:016x}", f"{b:016x}"] for a, b in piece.sums]]


def _generation(generation: Generation) -> list[Any]:
    spans = [(v.start, v.stop, plain(v.value)) for v in generation.valued]
    return [
        *(generation.start, generation.think_end, generation.stop),
        [list(span) for span in generation.hidden],
        [list(span) for span in spans if span[2] is not None],
        generation.whole,
    ]


# reading: whatever makes no sense raises one of _SENSELESS


def _entry(header: Header, ids: Ids, shapes: Shapes) -> Entry:
    meta = header.meta
    key = int(meta["entry"], 16)
    blocks = tuple(_block(data, key, shapes) for data in meta["blocks"])
    copies = tuple(_copy(data, key, shapes) for data in meta["copies"])
    edges = [0, *(block.stop for block in blocks)]
    assert edges[:-1] == [block.start for block in blocks] and edges[-1] == len(ids), "blocks"
    assert all(block.stop % shapes.block_rows == 0 for block in blocks[:-1]), "blocks"
    assert all(0 < block.stop - block.start <= shapes.block_rows for block in blocks), "blocks"
    taint, used_s, session = meta["taint"], meta["used_s"], meta["session"]
    assert session is None or isinstance(session, str), "session"
    assert isinstance(meta["kind"], str) and isinstance(used_s, float) and isfinite(used_s)
    account = Account(
        buffer=ids,
        anchors=Anchors(_NONE),
        valid=len(ids),
        taint=None if taint is None else _count(taint, len(ids)),
        session=session,
        kind=meta["kind"],
        tools=_count(meta["tools"], len(ids)),
        system=_count(meta["system"], len(ids)),
        prompt=_count(meta["prompt"], len(ids)),
        generations=[_told(data) for data in meta["generations"]],
    )
    account = described(account, copies)
    account.check(shapes.grid)
    return Entry(key, session, account, blocks, copies, manifest_bytes=header.nbytes, used_s=used_s)


def _count(value: Any, most: int = 10**8 - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number of rows")
    return value


def _block(data: list[Any], key: int, shapes: Shapes) -> Block:
    start, stop, *piece = data
    rows = _count(stop) - _count(start)
    name, nbytes, sums = _pieced(piece, key)
    return Block(start, stop, Piece(name, nbytes, shapes.block_weight(rows, nbytes), sums))


def _copy(data: list[Any], key: int, shapes: Shapes) -> Copy:
    tokens, kind, gate, *piece = data
    assert kind in ("grid", "checkpoint", "end"), kind
    name, nbytes, sums = _pieced(piece, key)
    return Copy(
        _count(tokens), kind, Gate(gate), Piece(name, nbytes, shapes.copy_weight(nbytes), sums)
    )


def _pieced(data: list[Any], key: int) -> tuple[str, int, tuple[Sums, ...]]:
    name, nbytes, sums = data
    assert key_of(name) == key and not name.endswith(MANIFEST), name
    if type(nbytes) is not int or nbytes <= 0:
        raise ValueError(f"{nbytes!r} is no size of a file")
    pairs = tuple((int(plain_, 16), int(weighted, 16)) for plain_, weighted in sums)
    assert all(0 <= number < 1 << 64 for pair in pairs for number in pair), "sums"
    return name, nbytes, pairs


def _told(data: list[Any]) -> Generation:
    start, think_end, stop, hidden, valued, whole = data
    assert isinstance(whole, bool)
    return Generation(
        *(_count(start), _count(think_end), _count(stop)),
        tuple((_count(at), _count(size)) for at, size in hidden),
        tuple(Valued(_count(a), _count(b), told(value)) for a, b, value in valued),
        whole,
    )
