"""Goal: what the embedded model writes comes back from a client as the tokens it wrote.

Method: answers of serve.embedded's model over HTTP, sent back; the next turn resumes at the end of
each. The canary lets it say everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from served import DIALECT, Served, serving

from engine.chat.silent import silent
from engine.weights import random_weights
from serve.about import About
from serve.embedded import embedded

TURNS = 3


def speaking() -> Any:
    """Served as the command serves it."""
    return serving(about=About("small", 120, 40))


def sources(served: Served) -> list[str]:
    """What served some turns of a conversation."""
    messages: list[dict[str, Any]] = []
    found = []
    for n in range(TURNS):
        messages.append({"role": "user", "content": f"number {n}, please"})
        with served.client() as client:
            answer = client.post("/v1/chat/completions", json={"messages": messages}).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        found.append(answer["usage"]["tandem"]["cache"]["source"])
        messages.append(answer["choices"][0]["message"])
    return found


def test_every_turn_resumes_at_the_end_of_the_one_before() -> None:
    with speaking() as served:
        assert sources(served) == ["cold", *["end"] * (TURNS - 1)]


def test_silent_tokens_are_those_that_are_no_text() -> None:
    tokenizer, quiet = DIALECT.tokenizer, set(silent(DIALECT))
    assert 0 < len(quiet) < tokenizer.vocab // 4
    for id in range(tokenizer.vocab):
        text = tokenizer.decode(np.array([id], np.int32))
        if "\ufffd" in text:
            assert id in quiet
        elif id not in quiet and id not in tokenizer.ids.values():
            assert tokenizer.piece(id) == text.encode()


def test_its_rows_are_another_models_than_one_that_says_everything() -> None:
    engine = embedded(DIALECT, 0, grid=64, window=256)
    assert "silent" in engine.manifest().weights
    assert engine.manifest().weights != random_weights(engine.decoder.config, 0).recipe


def test_canary_a_model_that_says_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.embedded.silent", lambda dialect: [])
    with speaking() as served:
        assert sources(served) != ["cold", *["end"] * (TURNS - 1)]
