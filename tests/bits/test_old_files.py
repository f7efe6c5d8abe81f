"""Files of format 1 in a tier's folder serve, or are left out, and never serve wrong bits.

Goal: heads that an older version wrote are read after an upgrade: an anchor's sections under their
old fixed names, a section that did not exist then as the zeros that it was. Where a section that is
no such one is lacking, the prompt is read anew. Covers `cache.format.tensors_of`.
Method: the tier writes a head for the real hybrid; its files are written again byte by byte as
format 1 had them; a new process serves the next prompt, held to a cold prefill's bits. The canaries
put one layer's state in another's place, and take a lacking section for zeros that it never was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from old_files import format_1
from support import GRID, WINDOW, box, joined, serve, tier, tokens, verifier

from cache.budget import freely
from cache.format import Header
from cache.journal import TurnRow
from cache.types import Manifest
from engine.config import HybridConfig
from engine.hybrid import Hybrid
from engine.vision_config import VisionConfig
from replay.verify import Verdict
from sim.files import SimFiles

HEAD = tokens(5 * GRID + 20, 70)
OLD = {"gdn.S": "S", "gdn.conv": "conv"}
PLAIN = HybridConfig.tiny(draft=False)
SEEING = HybridConfig.tiny(draft=False, vision=VisionConfig.small())
DRAFTING = HybridConfig.tiny()


def served(config: HybridConfig, files: SimFiles, seed: int) -> tuple[TurnRow, Verdict]:
    """A process that serves one prompt with the common head, and then ends."""
    of = Hybrid.random(config, 1, grid=GRID, window=WINDOW)
    opened = tier(files, of)
    on = box(of, disk=opened)
    ids = joined(HEAD, tokens(30, seed))
    row, verdict = serve(on, ids, tokens(9), check=verifier(of), session=f"s{seed}")
    opened.keeper.jobs.drain()
    opened.close()
    assert verdict is not None
    return row, verdict


def sections_of(data: bytes, header: Header) -> dict[str, torch.Tensor]:
    """A file's sections by name."""
    found = {}
    for section in header.sections:
        raw = bytearray(data[section.offset : section.stop])
        flat = torch.frombuffer(raw, dtype=section.dtype) if raw else torch.empty(0)
        found[section.name] = flat.to(section.dtype).view(section.shape)
    return found


def written(config: HybridConfig, names: Mapping[str, str] = OLD) -> SimFiles:
    """What a tier of format 1 would have left: of an anchor only the sections of these names."""
    files = SimFiles()
    served(config, files, 1)
    state = files.snapshot()
    count = 0
    for name, data in state.items():
        header = Header.parse(data)
        if not isinstance(header, Header) or not name.endswith((".rows", ".anchor")):
            continue
        sections: dict[str, Any] = sections_of(data, header)
        if name.endswith(".anchor"):
            sections = {old: sections[new] for new, old in names.items()}
        state[name] = format_1(header.kind, header.meta, sections)
        count += 1
    assert count > 5
    return SimFiles(state)


@pytest.mark.parametrize("config", [PLAIN, SEEING], ids=["plain", "with a tower"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_of_format_1_serves_bit_for_bit(config: HybridConfig, dtype: str) -> None:
    config = replace(config, dtype=dtype)
    row, verdict = served(config, written(config), 2)
    assert (row.source, row.cached, row.gate) == ("disk.grid", 5 * GRID, "bits")
    assert verdict.ok, verdict


@pytest.mark.parametrize("row", [3, 5 * GRID - 1])
def test_an_anchor_of_format_1_over_a_picture_is_not_believed(row: int) -> None:
    """What a picture needs was not in such a file: zeros would stand for it."""
    of = Hybrid.random(SEEING, 1, grid=GRID, window=WINDOW)
    assert of.manifest().legacy_absent
    opened = tier(written(SEEING), of)
    (entry,) = (entry for entry in opened.index if entry.line == 5 * GRID)
    assert opened._reading.make(freely)
    ids = HEAD[: entry.line].copy()
    ids[row] = -7
    read = opened._reader.read(entry, ids, 0, of)
    assert read.sections is None and "before there was room" in read.why
    assert read.bad is not None and read.bad.name == entry.name
    opened.close()


def test_files_of_both_versions_lie_beside_each_other() -> None:
    """What is written after the upgrade stands on chunks of before."""
    files = written(PLAIN)
    served(PLAIN, files, 2)
    longer = joined(HEAD, tokens(30, 2), tokens(2 * GRID, 3))
    of = Hybrid.random(PLAIN, 1, grid=GRID, window=WINDOW)
    opened = tier(files, of)
    on = box(of, disk=opened)
    serve(on, longer, tokens(9), session="new")
    opened.keeper.jobs.drain()
    opened.close()
    versions = {
        header.version
        for name, data in files.snapshot().items()
        if name.endswith((".rows", ".anchor")) and isinstance(header := Header.parse(data), Header)
    }
    assert versions == {1, 2}
    row, verdict = served(PLAIN, files, 2)
    assert row.source == "disk.grid" and verdict.ok, verdict


def test_an_anchor_that_lacks_a_section_serves_nothing() -> None:
    """The draft layer's hidden was never zero; the prompt is read anew, and kept anew."""
    files = written(DRAFTING)
    row, verdict = served(DRAFTING, files, 2)
    assert row.source == "cold" and verdict.ok, verdict
    row, verdict = served(DRAFTING, files, 3)
    assert row.source == "disk.grid" and verdict.ok, verdict


def test_canary_a_lacking_section_taken_for_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Hybrid.manifest

    def says_zero(self: Hybrid) -> Manifest:
        return replace(manifest(self), legacy_absent=("draft.h",))

    monkeypatch.setattr(Hybrid, "manifest", says_zero)
    row, verdict = served(DRAFTING, written(DRAFTING), 2)
    assert row.source == "disk.grid" and not verdict.ok


def test_canary_one_layers_state_in_anothers_place() -> None:
    """Of one shape, so that no check of shapes can see it; the bit gate does."""
    files = written(PLAIN)
    state = files.snapshot()
    for name, data in state.items():
        header = Header.parse(data)
        if name.endswith(".anchor") and isinstance(header, Header):
            sections = sections_of(data, header)
            sections["S"] = sections["S"].flip(0)
            state[name] = format_1(header.kind, header.meta, sections)
    row, verdict = served(PLAIN, SimFiles(state), 2)
    assert row.source == "disk.grid" and not verdict.ok
