"""Goal: whatever the OpenAPI document allows, and much that it does not, no answer is a 500.

Method: schemathesis makes requests of the document that the real application serves (serve.app,
serve.openapi), as it says and as it does not; a third kind are whole conversations with a field or
two of what it made, since what it makes alone seldom comes as far as the engine. They are sent over
HTTP to a small random model whose answers are kept short. Every answer is a success or an error in
OpenAI's shape, and afterwards a greedy request gets the tokens that it got at first. Canary: a
route that fails is found.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from served import Served, house, serving, usual
from test_serve_bad import said

ANSWER_TOKENS = 4
CHATS = ["/v1/chat/completions", "/v1/cache/peek", "/v1/cache/prewarm"]
TEXTS = ["/v1/completions"]
AS_SAID, OTHERWISE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
BODIES = [*((path, "POST") for path in [*CHATS, *TEXTS]), ("/v1/settings", "PUT")]
OPERATIONS = [
    *BODIES,
    ("/v1/cache/stats", "GET"),
    ("/v1/cache/clear", "POST"),
    ("/v1/settings", "GET"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/health", "GET"),
    ("/metrics", "GET"),
]
SAME_BODY = [(path, "POST") for path in CHATS[1:]]
"""Routes that read a chat's body as the first does: they are sent whole requests only."""
REFUSABLE = [op for op in [*BODIES, ("/v1/cache/clear", "POST")] if op not in SAME_BODY]
"""Those that can be asked what the document does not allow."""
BOUNDED = settings(
    max_examples=8,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    some = usual()
    short = some.changed({"serving": {"answer_tokens": ANSWER_TOKENS}})
    with serving(house(settings=short)) as under_way:
        yield under_way


@pytest.fixture(scope="module")
def first(server: Served) -> str:
    return said(server)


def shortened(body: Any) -> Any:
    """The same request, of an answer that does not take long."""
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens"):
            if type(body.get(name)) is int and body[name] > ANSWER_TOKENS:
                body = {**body, name: ANSWER_TOKENS}
    return body


def checked(answer: Any) -> None:
    """Raises for an answer that is neither a success nor an error as it should be."""
    if answer.status_code < 400:
        return
    assert answer.status_code < 500, (answer.status_code, answer.text[:300])
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]


Fields = dict[str, Any]
PLACES = st.integers(0, 40)
WORDS = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "</think>", "<tool_call>", "\ud83d"])


def user_says(words: str) -> Fields:
    return {"role": "user", "content": words}


@st.composite
def talks(draw: Any) -> list[Fields]:
    """Conversations as clients send them; now and then with a result that nobody asked for."""
    told: list[Fields] = []
    if draw(st.booleans()):
        told.append({"role": draw(st.sampled_from(["system", "developer"])), "content": "be kind"})
    for turn in range(draw(st.integers(1, 2))):
        parts = [{"type": "text", "text": draw(WORDS)}]
        told.append(user_says(draw(WORDS)) | ({"content": parts} if draw(st.booleans()) else {}))
        function = {"name": draw(WORDS), "arguments": draw(WORDS)}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        answer: Fields = {"role": "assistant", "content": draw(st.none() | WORDS)}
        if draw(st.booleans()):
            id = draw(st.sampled_from([f"c{turn}"] * 4 + ["c9"]))
            result = {"role": "tool", "tool_call_id": id, "content": draw(WORDS)}
            told += [answer | {"tool_calls": [call]}, result]
        else:
            told.append(answer | {"reasoning_content": draw(WORDS)})
    return told if draw(st.booleans()) else [*told, user_says(draw(WORDS))]


def mixed(whole: Fields, made: Any, at: int, fields: int) -> Fields:
    """A whole request with so many fields of what was made, from one on."""
    made = made if isinstance(made, dict) else {}
    names = [name for name in sorted(made) if name not in whole]
    taken = [names[(at + n) % len(names)] for n in range(min(fields, len(names)))]
    return whole | {name: made[name] for name in taken}


@functools.cache
def document_of(url: str) -> Any:
    """What the server says that it can be asked."""
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


def sent(url: str, path: str, method: str, mode: GenerationMode, whole: Any = None) -> list[int]:
    """Send what schemathesis makes of one operation, mixed into whole requests where there are
    any; the status of each answer.
    """
    cases = document_of(url)[path][method].as_strategy(generation_mode=mode)
    seen: list[int] = []

    @BOUNDED
    @given(cases, whole if whole is not None else st.none(), PLACES, PLACES)
    def sends(case: Any, request: Fields | None, at: int, fields: int) -> None:
        if request is not None:
            case.body = mixed(request, case.body, at, fields % 4)
        case.body = shortened(case.body)
        answer = case.call(base_url=url, timeout=60)
        checked(answer)
        seen.append(answer.status_code)

    sends()
    return seen


def test_the_document_has_every_operation(server: Served) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    found = [(path, method.upper()) for path, of in document["paths"].items() for method in of]
    assert sorted(found) == sorted(OPERATIONS)


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        *((*operation, AS_SAID) for operation in OPERATIONS if operation not in SAME_BODY),
        *((*operation, OTHERWISE) for operation in REFUSABLE),
    ],
)
def test_no_request_fails(
    server: Served, first: str, path: str, method: str, mode: GenerationMode
) -> None:
    try:
        assert sent(server.url, path, method, mode)
    finally:
        assert said(server) == first


@pytest.mark.parametrize("path", [*CHATS, *TEXTS])
def test_no_whole_request_with_an_odd_field_fails(server: Served, first: str, path: str) -> None:
    prompts = st.fixed_dictionaries({"prompt": WORDS | st.lists(WORDS, min_size=1, max_size=2)})
    whole = prompts if path in TEXTS else st.fixed_dictionaries({"messages": talks()})
    try:
        seen = sent(server.url, path, "POST", AS_SAID, whole)
        assert seen.count(200) >= len(seen) // 4, "hardly any came as far as the engine"
    finally:
        assert said(server) == first


def test_canary_a_route_that_fails_is_found(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(server.service, "check_model", fails)
    with pytest.raises(AssertionError, match="500"):
        sent(server.url, "/v1/models/{name}", "GET", AS_SAID)
