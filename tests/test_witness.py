"""The witness says which tokens its rows stand for and how they were computed.

Method: every way to write a row, against the formula of a cold prefill; one fault at a time.
"""

import numpy as np
import pytest
import torch
from support import GRID, VOCAB, tokens

from cache.types import Gate, Ids
from engine.witness import Witness, mix, signed


def cold(ids: Ids, window: int = 1_024) -> tuple[Witness, torch.Tensor]:
    witness, logits = Witness(GRID, window, vocab=VOCAB), torch.empty(0)
    for start in range(0, len(ids), GRID):
        logits = witness.prefill(ids[start : start + GRID])
    return witness, logits


@pytest.mark.parametrize("size", [1, 2, 3, GRID - 1, GRID, GRID + 1, 5 * GRID, 5 * GRID + 2])
def test_a_cold_prefill_is_what_it_says(size: int) -> None:
    ids = tokens(size)
    witness, logits = cold(ids)
    assert witness.differs(ids, logits, Gate.BITS, size) == ""
    assert witness.differs(ids, logits, Gate.GREEDY, 0) == ""


def test_other_tokens_are_seen_under_either_gate() -> None:
    ids = tokens(200)
    witness, logits = cold(ids)
    for at in (0, 100, 199):
        other = ids.copy()
        other[at] = (other[at] + 1) % VOCAB
        for gate in Gate:
            assert witness.differs(other, logits, gate, 200) != ""


def test_a_verify_block_is_seen_under_the_bit_gate_only() -> None:
    ids = tokens(200)
    witness, _ = cold(ids[:150])
    logits = witness.verify(ids[150:])
    witness.accept(50)
    witness.settle()
    assert "row 150 was not" not in witness.differs(ids, logits[-1], Gate.GREEDY, 150)
    assert witness.differs(ids, logits[-1], Gate.GREEDY, 150) == ""
    assert witness.differs(ids, logits[-1], Gate.BITS, 200) != ""


def test_what_stands_on_a_verify_block_stays_marked() -> None:
    """Whole chunks after it are not a cold prefill's, however long the prompt goes on."""
    ids = tokens(10 * GRID)
    witness, _ = cold(ids[: GRID + 5])
    witness.verify(ids[GRID + 5 : GRID + 8])
    witness.accept(3)
    start = GRID + 8
    logits = torch.empty(0)
    while start < len(ids):
        stop = min(len(ids), (start // GRID + 1) * GRID)
        logits = witness.prefill(ids[start:stop])
        start = stop
    assert witness.differs(ids, logits, Gate.BITS, len(ids)) == (
        f"row {GRID} was not computed as a cold prefill's"
    )
    assert witness.differs(ids, logits, Gate.GREEDY, GRID + 5) == ""


def test_a_chunk_cut_in_two_is_seen() -> None:
    ids = tokens(3 * GRID)
    witness, _ = cold(ids[: 2 * GRID])
    witness.prefill(ids[2 * GRID : 2 * GRID + 9])
    logits = witness.prefill(ids[2 * GRID + 9 :])
    assert witness.differs(ids, logits, Gate.BITS, len(ids)) != ""


@pytest.mark.parametrize("section", [0, 1])
def test_a_section_of_another_place_spoils_what_follows(section: int) -> None:
    ids = tokens(4 * GRID)
    before, _ = cold(ids[:GRID])
    witness, _ = cold(ids[: 2 * GRID])
    old = before.cache_state().sections[section].tensor
    witness.cache_state().sections[section].tensor.copy_(old)
    for start in (2 * GRID, 3 * GRID):
        logits = witness.prefill(ids[start : start + GRID])
    assert witness.differs(ids, logits, Gate.BITS, len(ids)) != ""
    assert witness.differs(ids, logits, Gate.GREEDY, 2 * GRID) != ""


def test_every_single_bit_of_a_section_counts() -> None:
    ids = tokens(2 * GRID)
    for section in (0, 1):
        for word in range(2):
            for bit in range(0, 64, 7):
                witness, _ = cold(ids[:GRID])
                tensor = witness.cache_state().sections[section].tensor
                tensor[-1 - word] ^= signed(1 << bit)
                logits = witness.prefill(ids[GRID:])
                found = witness.differs(ids, logits, Gate.BITS, len(ids))
                # The tail's older columns are checked where they stand, before a chunk drops them.
                if section == 1 and word == 1:
                    continue
                assert found != "", (section, word, bit)


def test_the_tails_older_columns_are_compared_too() -> None:
    ids = tokens(GRID)
    witness, logits = cold(ids)
    witness.cache_state().sections[1].tensor[0] ^= 1
    assert witness.differs(ids, logits, Gate.BITS, GRID) == "a section stands for other tokens"


def test_pending_folded_or_landed_leaves_the_same_state() -> None:
    ids = tokens(90)
    folded, _ = cold(ids[:80])
    landed, _ = cold(ids[:80])
    for witness, settle in ((folded, False), (landed, True)):
        witness.verify(ids[80:84])
        witness.accept(3)
        if settle:
            witness.settle()
        witness.verify(ids[83:88])
        witness.accept(5)
        witness.settle()
    for a, b in zip(folded.cache_state().sections, landed.cache_state().sections, strict=True):
        assert torch.equal(a.tensor, b.tensor)


def test_mix_spreads_and_signed_keeps_the_bits() -> None:
    assert len({mix(a, b) for a in range(50) for b in range(50)}) == 2_500
    for value in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        assert np.int64(signed(value)).view(np.uint64) == value
