"""Goal: a house keeps what its directory is to keep, takes no other's directory, and lets settings
reach what they name while it stands.

Method: serve.house over real directories, opened twice, broken and foreign; settings changed over
HTTP and seen in the next request; serve.host_memory beside memory that is really taken. The canary
draws a new key at every start.
"""

from __future__ import annotations

import base64
import io
import json
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import DIALECT, house, serving

from engine.bad import BadInput
from serve.host_memory import HostMemory, total_bytes

MIB = 1 << 20


def modes(folder: Path) -> dict[str, int]:
    """Every file's and folder's mode below a directory."""
    return {str(p.relative_to(folder)): stat.S_IMODE(p.lstat().st_mode) for p in folder.rglob("*")}


def test_a_directory_keeps_its_key_and_settings_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = house(folder)
    key = first.key
    first.change({"serving": {"keepalive_s": 3}})
    first.stop()
    first.close()
    second = house(folder)
    try:
        assert second.key == key and second.settings.serving.keepalive_s == 3
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        wrong = {
            name: oct(mode)
            for name, mode in modes(folder).items()
            if mode not in ((0o700,) if (folder / name).is_dir() else (0o600,))
        }
        assert not wrong
    finally:
        second.close()


def test_two_houses_do_not_share_a_directory(tmp_path: Path) -> None:
    first = house(tmp_path / "one")
    try:
        with pytest.raises(BadInput, match="another process"):
            house(tmp_path / "one")
    finally:
        first.close()
    house(tmp_path / "one").close()


@pytest.mark.parametrize("what", ["foreign", "file", "settings", "link"])
def test_a_directory_that_is_no_good_is_refused_and_left_as_it_is(
    tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "d"
    if what == "file":
        folder.write_text("no directory")
    elif what == "link":
        folder.symlink_to(tmp_path / "nowhere")
    else:
        folder.mkdir(mode=0o755)
        name = "thesis.tex" if what == "foreign" else "settings.json"
        (folder / name).write_text("{")
    before = modes(tmp_path)
    with pytest.raises(BadInput) as refused:
        house(folder)
    assert "\n" not in str(refused.value)
    if what == "foreign":
        assert "thesis.tex" in str(refused.value) and modes(tmp_path) == before
    if what == "settings":
        assert (folder / "settings.json").read_text() == "{"


def picture(shade: int) -> dict[str, Any]:
    """A message's part that is an image."""
    file = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), shade, np.uint8)).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def test_caps_hold_from_the_next_request_on() -> None:
    shown = [
        {"role": "user", "content": [picture(n), {"type": "text", "text": "?"}]} for n in (9, 99)
    ]
    body = {
        "messages": [shown[0], {"role": "assistant", "content": "!"}, shown[1]],
        "max_tokens": 2,
    }
    with serving() as served, served.client() as client:

        def images() -> int:
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return int(answer.json()["usage"]["tandem"]["parts"]["images"])

        both = images()
        assert client.put("/v1/settings", json={"serving": {"images_max": 1}}).status_code == 200
        assert 0 < images() == both // 2
        patch = {"serving": {"request_bytes_max": 1_024}}
        assert client.put("/v1/settings", json=patch).status_code == 200
        long = {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=long).status_code == 413


def test_a_turn_of_a_conversation_waits_for_the_one_before() -> None:
    with serving(house(parallel=2)) as served:
        rows = served.house.journal.rows
        sent = {"messages": [{"role": "user", "content": "count " * 40}], "max_tokens": 150}
        headers = {"x-session-id": "one"}

        def post(tokens: int) -> None:
            with served.client() as client:
                client.post(
                    "/v1/chat/completions", json={**sent, "max_tokens": tokens}, headers=headers
                )

        long = threading.Thread(target=post, args=(200,))
        long.start()
        while not served.service.desk.active:
            pass
        post(3)
        long.join()
        assert [row.output for row in rows] == [200, 3], "the short one overtook it"


def test_host_memory_is_the_process_s_own() -> None:
    memory = HostMemory()
    before = memory.allocated_bytes()
    assert 50 * MIB < before < total_bytes()
    memory.mark()
    taken = np.ones(64 * MIB, np.uint8)
    assert memory.allocated_bytes() - before > 50 * MIB
    del taken
    # Other tests' threads may take some meanwhile, but hardly so much.
    assert memory.allocated_bytes() - before < 40 * MIB
    assert memory.peak_bytes() - before > 50 * MIB
    assert memory.reserve_bytes() == 0


def test_canary_a_key_that_is_drawn_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.house._kept_key", lambda folder, fresh: fresh)
    with pytest.raises(AssertionError):
        test_a_directory_keeps_its_key_and_settings_and_is_private(tmp_path)


def test_journal_lines_are_the_turns(tmp_path: Path) -> None:
    with serving(house(tmp_path / "d")) as served, served.client() as client:
        sent = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        client.post("/v1/chat/completions", json=sent)
        served.house.jobs.drain()
        lines = (tmp_path / "d" / "journal" / "journal.jsonl").read_text().splitlines()
        turns = [json.loads(line) for line in lines if "prompt" in json.loads(line)]
        assert [turn["output"] for turn in turns] == [4] and "hello" not in "".join(lines)


def test_a_closed_house_leaves_no_thread(tmp_path: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    with serving(house(tmp_path / "d")) as served, served.client() as client:
        for n in range(3):
            sent = {"messages": [{"role": "user", "content": f"{n} " + "word " * 500}]}
            client.post("/v1/chat/completions", json={**sent, "max_tokens": 4})
        client.put("/v1/settings", json={"serving": {"keepalive_s": 4}})
    left = [t.name for t in threading.enumerate() if t.ident not in before]
    assert not left


def test_a_wanted_call_stands_behind_the_thought_as_the_template_has_it() -> None:
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    sent = {
        "messages": [{"role": "user", "content": "look"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "reasoning_budget": 5,
        "max_tokens": 60,
    }
    with serving() as served, served.client() as client:
        assert client.post("/v1/chat/completions", json=sent).status_code == 200
        rows = served.house.box.stack.resident.account.ids
        assert "</think>\n\n<tool_call>\n<function=look>" in DIALECT.tokenizer.decode(rows)
