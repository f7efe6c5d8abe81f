"""Goal: a conversation over the cap leaves out its oldest images so that few tokens are read again.

Method: a chat whose every turn brings a new image is rendered for 30 turns. The tokens each prompt
reads again are those of the turn before that it doesn't begin with. They are counted in steps of
half the cap, and by the naive twin, which leaves out one at a time and reads its whole tail again
at every turn. Canary: a set that moves at each turn must fail what the steps are held to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from photos import attached, data_url, photo

from cache.types import common_prefix
from engine.chat import omitted
from engine.chat.gallery import Gallery
from engine.chat.messages import Message, Reply, Say, Show, messages_of
from engine.chat.omitted import LEFT_OUT, within
from engine.chat.rendered import Rendered
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer
from engine.pictures.leave_out import Cap
from engine.pictures.patches import PatchConfig

TOKENIZER = Tokenizer()
TURNS, CAP = 30, Cap(images=8)
GALLERY = Gallery(patches=PatchConfig(min_pixels=9_216, max_pixels=40_000))
ANSWER = "It is noise, as far as I can tell."


@cache
def whole() -> tuple[Message, ...]:
    """Every turn brings an image."""
    raw: list[dict[str, Any]] = []
    for turn in range(TURNS):
        raw.append(attached(f"And this, number {turn}?", (f"{turn}.png", data_url(photo(turn)))))
        raw.append({"role": "assistant", "content": ANSWER})
    return messages_of(raw, GALLERY.see)


def conversation(turns: int) -> tuple[Message, ...]:
    """So many turns, answered but for the last."""
    return whole()[: 2 * turns - 1]


def prompts(template: Template) -> list[Rendered]:
    return [template.render(conversation(turn + 1)) for turn in range(TURNS)]


def reread(said: Sequence[Rendered]) -> list[int]:
    """Tokens of the prompt before that each prompt has to read again."""
    return [
        len(before.ids) - common_prefix(before.ids, after.ids)
        for before, after in itertools.pairwise(said)
    ]


def one_at_a_time(rows: Sequence[int], cap: Cap) -> int:
    """The naive way: as few as the cap asks for."""
    return max(0, len(rows) - cap.images)


def dropped(lost: list[int]) -> list[int]:
    """The turns at which more than the opening of an answer is read again."""
    return [turn for turn, count in enumerate(lost, 1) if count > 2]


def test_the_head_stays_equal_but_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = prompts(Template(TOKENIZER, cap=CAP))
    counts = [(p.ids == TOKENIZER.ids["<|vision_start|>"]).sum() for p in ours]
    assert max(counts) == CAP.images and counts[-1] >= CAP.images // 2
    lost = reread(ours)
    steps = dropped(lost)
    assert np.diff(steps).tolist() == [CAP.images // 2] * (len(steps) - 1) and len(steps) == 6
    monkeypatch.setattr(omitted, "left_out", one_at_a_time)
    theirs = reread(prompts(Template(TOKENIZER, cap=CAP)))
    assert dropped(theirs) == list(range(CAP.images, TURNS))
    assert 2 * sum(lost) < sum(theirs), (sum(lost), sum(theirs))


def test_canary_a_set_that_moves_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omitted, "left_out", one_at_a_time)
    steps = dropped(reread(prompts(Template(TOKENIZER, cap=CAP))))
    assert np.diff(steps).tolist() != [CAP.images // 2] * (len(steps) - 1)


def test_under_the_cap_nothing_is_touched() -> None:
    messages = conversation(8)
    assert within(messages, CAP) == messages
    assert within((), CAP) == ()


def test_a_fixed_text_stands_where_each_image_was() -> None:
    messages = conversation(9)
    left = within(messages, CAP)
    gone = [m for m, old in zip(left, messages, strict=True) if m != old]
    assert [m.role for m in gone] == ["user"] * (9 - sum(len(m.images) for m in left))
    for message, old in zip(left, messages, strict=True):
        back = tuple(
            Say("content", LEFT_OUT) if isinstance(piece, Show) and message != old else piece
            for piece in old.pieces
        )
        assert message == replace(old, pieces=back)
    assert left[-1] == messages[-1]


def test_several_images_of_a_message_go_the_oldest_first() -> None:
    urls = [(f"{n}.png", data_url(photo(n))) for n in range(9)]
    (message,) = messages_of([attached("Which?", *urls)], GALLERY.see)
    (left,) = within([message], CAP)
    kept = len(left.images)
    assert left.images == message.images[-kept:] and 0 < kept <= 8
    assert left.content.endswith(LEFT_OUT * (9 - kept))


def test_rows_count_as_well_as_images() -> None:
    assert sum(len(m.images) for m in within(conversation(9), Cap(rows=9 * 4))) <= 4


def test_an_answer_goes_on_behind_an_image_whether_it_is_shown_or_not() -> None:
    messages = conversation(9)
    opened = Message("assistant", (messages[0].images[0], Say("content", "It shows")))
    reply = Reply((Say("content", " noise."),))
    for cap in (Cap(images=1), Cap()):
        template = Template(TOKENIZER, cap=cap)
        prompt = template.render([*messages, opened])
        assert (len(prompt.shown) == 1) == (cap.images == 1)
        answer = template.answer_ids(reply, [*messages, opened])
        assert TOKENIZER.decode(answer.ids) == " noise.<|im_end|>"
