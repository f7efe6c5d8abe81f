"""Goal: what the server serves is written down as it was on the wire, and replays verified; a disk
that takes nothing costs lines and no traffic.

Method: a small chat application behind `serve.recording` on a real socket, streaming and not, cut
by its client, cut by its own failure. The files are read, scrubbed and replayed on the witness as
a user would; line by line they are held to what the proxy (`serve.record`) writes of the same
traffic.
"""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from rawlines import TOOLS
from served import house
from sockets import served, until
from typer.testing import CliRunner

import moorage
from engine.bad import BadInput
from serve import recording
from serve import tape as tape_module
from serve.about import About
from serve.app import app_of
from serve.doors import rules_of
from serve.record import recorder
from serve.recording import Recording, Reel
from serve.script import Script
from serve.service import Service

CHAT = "/v1/chat/completions"
HEADERS = {"user-agent": "opencode/1.2.3", "x-session-id": "ses_1", "authorization": "Bearer k"}


def frame(chunk: Any) -> dict[str, Any]:
    """A piece of a stream."""
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    return {"type": "http.response.body", "body": data, "more_body": True}


class Chat:
    """Answers with the number of messages, a word a frame; some questions make it misbehave."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        try:
            asked = json.loads(body)
        except ValueError:
            await self._whole(send, 400, {"error": {"message": "no JSON"}})
            return
        said = f"answer to {len(asked['messages'])} messages. " + "word " * 20
        if not asked.get("stream"):
            message = {"content": said, "reasoning_content": "hm"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await self._whole(send, 200, {"choices": [choice], "usage": {"prompt_tokens": 3}})
            return
        await self._stream(receive, send, said, asked["messages"][-1]["content"])

    async def _whole(self, send: Any, status: int, answer: Any) -> None:
        head = {"status": status, "headers": [(b"content-type", b"application/json")]}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _stream(self, receive: Any, send: Any, said: str, question: str) -> None:
        head = {"status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        await send({"type": "http.response.start", **head})
        for number, word in enumerate(said.split(" ")):
            delta = {"content": word + " "} | ({} if number else {"reasoning_content": "hm "})
            await send(frame({"choices": [{"index": 0, "delta": delta}]}))
            if question == "fail" and number == 3:
                raise RuntimeError("on purpose")
            if question == "hang" and number == 3:
                message = await receive()
                assert message["type"] == "http.disconnect"
                self.left.set()
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        await send(frame(end))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@contextmanager
def recorded(folder: Path, chat: Any = None, **reel: int) -> Iterator[tuple[str, Reel]]:
    tapes = Reel(folder, **reel)
    try:
        with served(Recording(chat or Chat(), tapes), lifespan="off") as url:
            yield url, tapes
    finally:
        tapes.close()


def ask(url: str, *questions: str, stream: bool = True, **body: Any) -> httpx.Response:
    messages: list[dict[str, str]] = []
    for question in questions:
        if messages:
            messages.append({"role": "assistant", "content": "an answer"})
        messages.append({"role": "user", "content": question})
    asked = {"model": "m", "messages": messages, "stream": stream} | body
    return httpx.post(url + CHAT, json=asked, headers=HEADERS)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.iterdir())
        for line in path.read_text().splitlines()
    ]


def test_it_reads_scrubs_and_replays_with_every_request_verified(tmp_path: Path) -> None:
    folder, messages = tmp_path / "recordings", []
    with recorded(folder) as (url, _):
        for turn in range(4):
            messages.append({"role": "user", "content": f"question {turn} " + "why " * 40})
            body = {"model": "m", "messages": messages, "stream": turn != 2}
            reply = httpx.post(url + CHAT, json=body, headers=HEADERS)
            parts = "".join(
                json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                for line in reply.text.splitlines()
                if line.startswith("data: {")
            )
            content = parts if turn != 2 else reply.json()["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": content})
        httpx.get(url + "/v1/models")
    assert len(lines(folder)) == 4
    trace = tmp_path / "t.jsonl"
    raw = [str(path) for path in sorted(folder.iterdir())]
    scrubbed = CliRunner().invoke(moorage.app, ["scrub", *raw, "--out", str(trace)])
    assert scrubbed.exit_code == 0, scrubbed.output
    assert "question" not in trace.read_text()
    for source in (folder, trace):
        figures = verified(source)
        assert figures["requests"] == 4 and figures["cached_tokens"] > 0


def verified(source: Path) -> dict[str, Any]:
    """The figures of a replay on the witness, in which every request is verified."""
    replayed = CliRunner().invoke(moorage.app, ["replay", str(source), "--json", "--verify", "all"])
    assert replayed.exit_code == 0, replayed.output
    summary: dict[str, Any] = json.loads(replayed.stdout[replayed.stdout.index("{") :])
    checked = summary["verified"]
    assert (checked["checked"], checked["failed"]) == (summary["requests"], 0)
    return summary


def test_a_tool_loop_of_the_real_server_replays(tmp_path: Path) -> None:
    rules = [
        {"when": {"step": 1}, "say": [["reasoning", "Hm."], ["tool", "bash", {"command": "ls"}]]},
        {"say": [["content", "Two files."]]},
    ]
    (tmp_path / "script.json").write_text(json.dumps(rules))
    reel = Reel(tmp_path / "recordings")
    service = Service(house(), About("small"), Script.load(tmp_path / "script.json"))
    messages: list[Any] = []
    with served(app_of(service, rules_of("127.0.0.1"), reel)) as url:
        chat = openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0).chat.completions
        for question in ("how many files?", "and now?"):
            messages.append({"role": "user", "content": question})
            whole = chat.create(model="small", messages=messages, tools=TOOLS)
            messages.append(whole.choices[0].message.model_dump(exclude_none=True))
            (call,) = whole.choices[0].message.tool_calls or ()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "a b " * 20})
            stream = chat.create(model="small", messages=messages, tools=TOOLS, stream=True)
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            messages.append({"role": "assistant", "content": said})
    told = [line["reply"] for line in lines(tmp_path / "recordings")]
    assert [reply["finish_reason"] for reply in told] == ["tool_calls", "stop"] * 2
    assert told[0]["parts"][0] == ["reasoning", "Hm."]
    assert told[0]["parts"][1][2:] == ["bash", '{"command":"ls"}']
    assert told[1]["parts"] == [["content", "Two files."]]
    figures = verified(tmp_path / "recordings")
    assert figures["requests"] == 4 and figures["end_resumes"] == 3


def test_a_line_is_what_the_proxy_writes(tmp_path: Path) -> None:
    own, proxied = tmp_path / "own", tmp_path / "proxied.jsonl"
    with recorded(own) as (url, _), served(recorder(url, proxied)) as proxy:
        for stream in (True, False):
            ask(proxy, "a", stream=stream)
        httpx.post(proxy + CHAT, content=b'{"cut": "\\ud83d"', headers=HEADERS)
        until(lambda: proxied.read_bytes().count(b"\n") == 3)
    for mine, theirs in zip(
        lines(own), map(json.loads, proxied.read_text().splitlines()), strict=True
    ):
        for line in (mine, theirs):
            assert line.pop("t") <= line.pop("t_end")
            # The proxy is a neighbour of its own: what concerns only two neighbours is not passed.
            passed = [pair for pair in line["headers"] if pair[0].startswith("x-")]
            line["headers"] = passed
        assert mine == theirs
    assert [line["reply"]["status"] for line in lines(own)] == [200, 200, 400]
    assert "Bearer" not in str(lines(own))


async def deaf(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, then never asks again whether somebody is there."""
    await receive()
    head = {"status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    await send({"type": "http.response.start", **head})
    for number in range(200):
        await send(frame({"choices": [{"index": 0, "delta": {"content": f"{number} "}}]}))
        await asyncio.sleep(0.002)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def cut(folder: Path, chat: Any) -> dict[str, Any]:
    """The line of a reply whose client left after the first piece."""
    with recorded(folder, chat) as (url, _):
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hang"}]}
        with httpx.stream("POST", url + CHAT, json=body) as reply:
            assert next(reply.iter_bytes())
        until(lambda: lines(folder))
    (line,) = lines(folder)
    return line


@pytest.mark.parametrize("chat", [Chat(), deaf])
def test_what_a_client_that_left_was_sent(tmp_path: Path, chat: Any) -> None:
    reply = cut(tmp_path, chat)["reply"]
    assert reply["aborted"] is True and reply["finish_reason"] is None
    said = reply["parts"][-1][1]
    assert said.startswith("0 " if chat is deaf else "answer to 1 ")
    assert not said.rstrip().endswith("199")


def test_canary_who_asks_nobody_takes_a_cut_reply_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: Any) -> Any:
        await asyncio.sleep(3_600)

    monkeypatch.setattr(recording._Passing, "_left", never)
    reply = cut(tmp_path, deaf)["reply"]
    assert reply["aborted"] is False and reply["parts"][-1][1].endswith(" 199 ")


def test_a_reply_that_the_server_cut_is_no_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    with recorded(folder) as (url, _):
        with pytest.raises(httpx.RemoteProtocolError):
            ask(url, "fail")
        assert ask(url, "and on").status_code == 200
    first, second = lines(folder)
    assert first["reply"]["error"] == {"message": "RuntimeError", "type": "server_error"}
    assert first["reply"]["finish_reason"] is None and "error" not in second["reply"]


def test_only_completions_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    with recorded(folder) as (url, _):
        httpx.post(url + "/v1/cache/clear", json={"messages": []})
        httpx.get(url + CHAT)
        httpx.post(url + "/v1/completions", json={"messages": []})
    assert [line["path"] for line in lines(folder)] == ["/v1/completions"]


def test_files_are_the_owners_alone_and_begin_anew_when_they_are_full(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "recordings"
    with recorded(folder, file_bytes_max=1_500) as (url, _):
        for number in range(6):
            ask(url, f"{number} " + "x" * 400)
    with recorded(folder) as (url, _):
        ask(url, "6")
    found = sorted(folder.iterdir())
    assert [path.name for path in found] == [f"raw-{n:06d}.jsonl" for n in range(1, len(found) + 1)]
    assert len(found) >= 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    asked = [line["body"]["messages"][0]["content"][0] for line in lines(folder)]
    assert asked == list("0123456")


def test_two_servers_write_to_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    with recorded(folder) as (one, _), recorded(folder) as (other, _):
        ask(one, "a"), ask(other, "b"), ask(one, "c")
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    assert [text.count("\n") for text in texts] == [2, 1]


def test_a_folder_of_somebody_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    Reel(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file"):
        Reel(tmp_path / "file")


def test_a_full_disk_costs_the_line_and_never_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "recordings"
    real, full = tape_module.os.write, threading.Event()

    def write(fd: int, data: bytes) -> int:
        if full.is_set() and b"moorage.raw" in data:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with recorded(folder, file_bytes_max=1) as (url, reel):
        monkeypatch.setattr(tape_module.os, "write", write)
        assert ask(url, "0").status_code == 200
        until(lambda: len(lines(folder)) == 1)
        full.set()
        # Neither a line nor a new file: the folder is gone as well.
        monkeypatch.setattr(Reel, "_next", lambda self: (_ for _ in ()).throw(OSError(28, "full")))
        assert ask(url, "1").text.endswith("data: [DONE]\n\n")
        until(lambda: reel.lost == 1)
        full.clear()
        assert ask(url, "2").status_code == 200
    assert [line["body"]["messages"][0]["content"] for line in lines(folder)] == ["0", "2"]
    assert "not recorded" in caplog.text and "no new file" in caplog.text


def test_a_disk_that_is_too_slow_holds_only_so_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, goes_on = tmp_path / "recordings", threading.Event()
    reel = Reel(folder, pending_bytes_max=100)

    def slow(number: int) -> dict[str, Any]:
        goes_on.wait(10)
        return {"n": number}

    for number in range(5):
        reel.add(lambda number=number: slow(number), 60)  # type: ignore[misc]
    assert reel.lost == 4 and "too slow" in caplog.text
    goes_on.set()
    until(lambda: reel._pending_bytes == 0)
    reel.add(lambda: {"n": 9}, 1_000)  # one alone is written however long it is
    reel.close()
    reel.add(lambda: {"n": 10}, 1)
    assert reel.lost == 5
    assert [line["n"] for line in lines(folder)] == [0, 9]
