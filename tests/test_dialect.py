"""Goal: the server asks any chat format the same questions; the bundled one answers for its own.

Method: prompts of every ending are rendered with and without thinking, and read back as text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.chat.dialect import Bundled, Dialect, close_thought, inside_thought, open_call
from engine.chat.messages import Call, Reply, messages_of
from engine.chat.template import Template
from engine.chat.tokenizer import Tokenizer

TEMPLATE = Template(Tokenizer())
DIALECT: Dialect = Bundled(TEMPLATE)
USER = {"role": "user", "content": "</think> q <think>"}


def prompt(*messages: dict[str, Any], thinking: bool = True) -> Any:
    return DIALECT.render(messages_of([USER, *messages]), thinking=thinking)


@pytest.mark.parametrize(
    ("message", "inside"),
    [
        (None, True),
        ({"reasoning_content": "R", "content": ""}, True),
        ({"reasoning_content": "R", "content": "C"}, False),
        ({"content": "C"}, False),
    ],
)
def test_where_an_answer_begins(message: dict[str, Any] | None, inside: bool) -> None:
    messages = [{"role": "assistant"} | message] if message else []
    assert inside_thought(DIALECT, prompt(*messages).ids) == inside
    without = prompt(*messages, thinking=False)
    assert not inside_thought(DIALECT, without.ids)
    assert without.history + without.system + without.tools == len(without.ids)
    assert inside or np.array_equal(without.ids, prompt(*messages).ids)


def test_an_answer_without_a_thought_comes_back_as_its_rows() -> None:
    rows = np.concatenate(
        [prompt(thinking=False).ids, DIALECT.tokenizer.encode("x", specials=False)]
    )
    following = prompt({"role": "assistant", "content": "x"}, USER).ids
    assert np.array_equal(following[: len(rows)], rows)


def test_what_a_server_writes_for_the_model() -> None:
    decode = DIALECT.tokenizer.decode
    assert decode(close_thought(DIALECT)) == "\n</think>\n\n"
    assert decode(open_call(DIALECT, "f</think>")) == "<tool_call>\n<function=f</think>>\n"
    assert int(DIALECT.tokenizer.structure(open_call(DIALECT, "f</think>")).sum()) == 1
    # A forced beginning is what the model would have written.
    written = TEMPLATE.answer_ids(Reply((Call("bash", '{"a":"b"}'),), "tool_calls")).ids
    begun = np.concatenate([close_thought(DIALECT), open_call(DIALECT, "bash")])
    assert np.array_equal(written[: len(begun)], begun)


def test_the_bundled_format() -> None:
    ids = DIALECT.tokenizer.ids
    assert DIALECT.stop_ids == {ids["<|im_end|>"], ids["<|endoftext|>"]}
    assert DIALECT.think_end == ids["</think>"] and DIALECT.thinks and DIALECT.call_form == "xml"
    assert DIALECT.defaults.temperature is None


def test_canary_without_any_thought_nothing_is_inside() -> None:
    assert not inside_thought(DIALECT, DIALECT.tokenizer.encode("<think>", specials=False))
    assert inside_thought(DIALECT, DIALECT.tokenizer.encode("<think>", specials=True))
