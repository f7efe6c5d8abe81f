"""Goal: what goes wrong reaches a client of the openai SDK as the exception that its users catch,
with the code, the field at fault and the time to come again, and the next request is served.

Method: the real application on a socket, a token on one of them; memory limits too small by way of
the settings; an engine that fails. Covers serve.errors and serve.app over HTTP. Canaries are at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from sdk_client import script_of, sdk, streamed, user, whole
from served import MODEL, WINDOW, Served, house, serving

TOKEN = "a-token-of-tests"
SLOW: list[dict[str, Any]] = [
    {"when": {"last_user": "slowly"}, "say": [["content", "word " * 400]], "tokens_s": 90},
    {"say": [["content", "Yes."]]},
]
SESSION = {"x-session-id": "one"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    script = script_of(tmp_path_factory.mktemp("said"), SLOW)
    with serving(house(parallel=0), script) as one:
        yield one


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with sdk(served) as one:
        yield one


@pytest.fixture(autouse=True)
def served_afterwards(client: openai.OpenAI) -> Iterator[None]:
    yield
    assert whole(client, [user("still here?")]).content == "Yes."


def check_too_long(client: openai.OpenAI) -> None:
    for ask in (whole, streamed):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, [user("much too long " * WINDOW)])
        error = caught.value
        assert error.code == "context_length_exceeded" and error.param == "messages"
        assert str(WINDOW) in error.message and error.type == "invalid_request_error"


def test_a_prompt_over_the_window(client: openai.OpenAI) -> None:
    check_too_long(client)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [user("x")], "temperature": 9}, "temperature"),
    ({"messages": [user("x")], "n": 0}, "n"),
    ({"messages": [user("x")], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [user("x")], "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [user("x"), {"role": "tool", "tool_call_id": "c", "content": "r"}]}, "messages"),
]


@pytest.mark.parametrize(("asked", "param"), WRONG, ids=[param for _, param in WRONG])
def test_what_makes_no_sense_names_the_field(
    client: openai.OpenAI, asked: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, stream=stream, **asked)
        assert (caught.value.param or "").startswith(param)


def test_what_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[user("x")])
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")


def check_token() -> None:
    with serving(house(parallel=0), token=TOKEN) as one:
        with sdk(one, key="another") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.post("/cache/clear", cast_to=object)
        assert caught.value.code == "invalid_api_key"
        assert "Bearer" in caught.value.response.headers["www-authenticate"]
        with sdk(one, key=TOKEN) as client:
            client.post("/cache/clear", cast_to=object)


def test_a_wrong_token() -> None:
    check_token()


def test_a_busy_engine(served: Served, client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [user("slowly")]}
    with ThreadPoolExecutor(2) as pool:
        # The second of a conversation waits for the first: whoever asks now is told to come again.
        turns = [
            pool.submit(whole, client, [user("slowly")], extra_headers=SESSION, max_tokens=60)
            for _ in range(2)
        ]
        desk = served.service.desk
        while not (desk.active and desk.waiting):
            assert not all(turn.done() for turn in turns)
        for path in ("/cache/peek", "/cache/prewarm"):
            with pytest.raises(openai.ConflictError) as caught:
                client.post(path, body=asked, cast_to=object)
            assert caught.value.code == "busy"
            assert int(caught.value.response.headers["retry-after"]) >= 1
        assert turns[0].result().said == turns[1].result().said


def test_settings_of_another_revision(client: openai.OpenAI) -> None:
    with pytest.raises(openai.ConflictError) as caught:
        client.put("/settings", body={"revision": 999}, cast_to=object)
    assert caught.value.code == "stale"


def check_no_room(client: openai.OpenAI) -> None:
    found: Any = client.get("/settings", cast_to=object)
    limits = {name: found["memory"][name] for name in ("ceiling_gib", "peak_gib", "slack_gib")}
    small = {"ceiling_gib": 0.01, "peak_gib": 0.02, "slack_gib": 0.0}
    client.put("/settings", body={"memory": small}, cast_to=object)
    try:
        for ask in (whole, streamed):
            with pytest.raises(openai.InternalServerError) as caught:
                ask(client, [user("is there room? " * 30)])
            error = caught.value
            assert error.status_code == 503 and error.code == "no_room"
            # The SDK comes again by itself when it is told a time of up to a minute.
            assert 1 <= int(error.response.headers["retry-after"]) <= 60
    finally:
        client.put("/settings", body={"memory": limits}, cast_to=object)


def test_no_memory_to_read_a_prompt(client: openai.OpenAI) -> None:
    check_no_room(client)


def test_the_sdk_comes_again_when_it_is_told_to(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cache.budget import Budget, Refused

    refusals = [Refused("no room for this test", 1, 2, 1)]
    admit = Budget.admit

    def once(self: Budget, *args: Any) -> Refused | None:
        return refusals.pop() if refusals else admit(self, *args)

    monkeypatch.setattr(Budget, "admit", once)
    with sdk(served, retries=1) as client:
        assert whole(client, [user("and now?")]).content == "Yes."
    assert refusals == []


def check_break(client: openai.OpenAI, served: Served, patch: pytest.MonkeyPatch) -> None:
    engine = type(served.house.engine)
    verify, rounds = engine.verify, iter(range(3))

    def broken(*args: Any) -> Any:
        if next(rounds, None) is None:
            raise RuntimeError("no device")
        return verify(*args)

    with patch.context() as within:
        within.setattr(engine, "verify", broken)
        heard, stream = (
            "",
            client.chat.completions.create(
                model=MODEL, messages=[user("slowly, then break")], stream=True
            ),
        )
        with pytest.raises(openai.APIError) as caught:
            for chunk in stream:
                heard += chunk.choices[0].delta.content or ""
    assert heard.startswith("word") and caught.value.code == "internal_error"


def test_a_stream_that_breaks_says_so(
    client: openai.OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_break(client, served, monkeypatch)


def test_an_engine_that_fails(
    client: openai.OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no device")

    with monkeypatch.context() as within:
        within.setattr(type(served.house.engine), "prefill", broken)
        with pytest.raises(openai.InternalServerError) as caught:
            whole(client, [user("fail")])
    assert caught.value.status_code == 500 and caught.value.code == "internal_error"


Check = Callable[[openai.OpenAI, Served, pytest.MonkeyPatch], None]


def no_code(patch: pytest.MonkeyPatch) -> None:
    from serve.errors import ApiError

    body = ApiError.body
    patch.setattr(ApiError, "body", lambda self: {"error": {**body(self)["error"], "code": None}})


def no_headers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("serve.errors.retry_after", lambda seconds: {})


def no_frame(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("serve.answering.error_frame", lambda error: b"data: [DONE]\n\n")


def open_door(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hmac.compare_digest", lambda a, b: True)


@pytest.mark.parametrize(
    ("check", "plant"),
    [
        (lambda client, *_: check_too_long(client), no_code),
        (lambda client, *_: check_no_room(client), no_headers),
        (check_break, no_frame),
        (lambda *_: check_token(), open_door),
    ],
)
def test_canary(
    check: Check,
    plant: Callable[[pytest.MonkeyPatch], None],
    client: openai.OpenAI,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as within:
        plant(within)
        with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
            check(client, served, within)
