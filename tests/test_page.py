"""The status page: what is served and under which policy, and what a browser makes of it.

Method: the files as they come over HTTP, searched for what a page must not do; then the page of a
served house in a headless Chromium, which reads it, changes settings, clears, chats and stops, each
held to what the house itself says. Canaries: a script that was put into the page does not run, and
a browser that misses a file is heard. Covers serve.page_routes.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Tab, chromium, tab
from fastapi import FastAPI
from fastapi.testclient import TestClient
from served import MODEL, Served, house, serving

from serve import page_routes
from serve.page_routes import FOLDER, HEADERS, POLICY, TYPES
from serve.script import Script
from serve.settings import Settings

TOKEN = "a-token"
MARKUP = "<img src=x onerror=document.title='run'> & <b>bold</b>"
WORD = "quincunx"
"""Said in a conversation; the page must not know it."""
RULES = [
    {"when": {"last_user": "slowly"}, "say": [["content", "and on " * 400]], "tokens_s": 40},
    {"when": {"last_user": "markup"}, "say": [["content", MARKUP]]},
    {"say": [["reasoning", "They greet me."], ["content", "Ahoy, and welcome aboard."]]},
]

needs_browser = pytest.mark.skipif(chromium() is None, reason="there is no chromium here")


# the files


@pytest.fixture(scope="module")
def files() -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(page_routes.routes())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def names() -> list[str]:
    return sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", names())
def test_a_file_comes_with_its_type_and_under_the_policy(files: TestClient, name: str) -> None:
    found = files.get(f"/page/{name}")
    assert found.content == (FOLDER / name).read_bytes()
    assert found.headers["content-type"] == TYPES[Path(name).suffix]
    assert {key: found.headers[key] for key in HEADERS} == HEADERS
    again = files.get(f"/page/{name}", headers={"if-none-match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == POLICY


def test_the_root_is_the_page(files: TestClient) -> None:
    found = files.get("/")
    assert found.content == (FOLDER / "index.html").read_bytes()
    assert found.headers["content-security-policy"] == POLICY
    assert files.head("/").status_code == 200


@pytest.mark.parametrize(
    "path", ["nothing", "%2e%2e%2fpage_routes.py", "..%2fsettings.py", "index.html%00", "."]
)
def test_nothing_else_is_served(files: TestClient, path: str) -> None:
    assert files.get(f"/page/{path}").status_code in (404, 500)
    assert b"import" not in files.get(f"/page/{path}").content


def test_the_policy_lets_the_page_use_this_server_alone() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'"}


def wrong_in(name: str, text: str) -> list[str]:
    """What a file of the page must not have."""
    bans = {
        ".html": r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=|"
        r"<(?:iframe|object|embed|form[^>]*action)",
        ".js": r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\bFunction\(|"
        r"DOMParser|setAttribute\(\"(?:on|style|href|src)|localStorage|import\(",
        ".css": r"@import|url\(",
    }
    found = re.findall(bans.get(Path(name).suffix, r"<script|on\w+="), text)
    elsewhere = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text)
    return found + [url for url in elsewhere if url != "http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("name", names())
def test_a_file_has_nothing_inline_and_nothing_from_elsewhere(name: str) -> None:
    assert wrong_in(name, (FOLDER / name).read_text()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", "<script>run()</script>"),
        ("a.html", '<p onclick="run()">'),
        ("a.html", '<p style="color: red">'),
        ("a.html", '<link href="https://example.org/x.css">'),
        ("a.js", "block.innerHTML = text"),
        ("a.js", 'import { x } from "https://example.org/x.js"'),
        ("a.css", "@import 'x.css'"),
    ],
)
def test_canary_what_a_file_must_not_have_is_seen(name: str, text: str) -> None:
    assert wrong_in(name, text)


def literals(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every setting of few values, and every one that may be null, as the document's model has
    them."""
    whole = Settings.model_json_schema()
    for name, what in schema["properties"].items():
        path = f"{at}.{name}".lstrip(".")
        kind = what["$ref"].rsplit("/", 1)[-1] if "$ref" in what else None
        if kind is not None:
            yield from literals(whole["$defs"][kind], path)
        elif "enum" in what:
            yield path, what["enum"]
        elif {"type": "null"} in what.get("anyOf", ()):
            yield path, []


def test_the_form_knows_every_choice_of_the_document() -> None:
    code = (FOLDER / "settings.js").read_text()
    block = re.search(r"const CHOICES = \{(.*?)\n\};", code, re.S)
    nullable = re.search(r"const NULLABLE = /(.*)/;", code)
    assert block is not None and nullable is not None
    lines = re.findall(r'"?([\w.]+)"?: \[(.*)\]', block.group(1))
    known = {path: json.loads(f"[{values}]") for path, values in lines}
    wanted = dict(literals(Settings.model_json_schema()))
    assert known == {path: values for path, values in wanted.items() if values}
    for path, values in wanted.items():
        assert bool(re.search(nullable.group(1), path)) is not bool(values), path


def test_files_are_short() -> None:
    assert all(len((FOLDER / name).read_text().splitlines()) <= 300 for name in names())


# in a browser


@dataclass(frozen=True, slots=True)
class Open:
    """A house, and its page in a browser."""

    at: Served
    tab: Tab
    http: httpx.Client

    def says(self, text: str, session: str) -> httpx.Response:
        """A turn of somebody else."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        headers = {"x-session-id": session}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "script.json").write_text(json.dumps(RULES))
    of = house(folder / "cache")
    with (
        serving(of, Script.load(folder / "script.json"), TOKEN) as at,
        tab(folder / "browser") as browser,
        at.client() as http,
    ):
        opened = Open(at, browser, http)
        opened.says(f"My secret word is {WORD}. " * 60, "secret-session").raise_for_status()
        yield opened


@pytest.fixture
def shown(page: Open) -> Iterator[Open]:
    """The page, just opened; it may not have complained when the test is over."""
    page.tab.said.clear()
    page.tab.open(f"{page.at.url}/")
    page.tab.run("sessionStorage.clear()")
    page.tab.open(f"{page.at.url}/")
    page.tab.until("document.querySelector('#turn-rows td.n')")
    page.tab.until("document.querySelector('[name=\"disk.budget_gb\"]')")
    yield page
    assert page.tab.said == []


@needs_browser
def test_the_page_shows_what_the_stats_say(shown: Open) -> None:
    told = shown.http.get("/v1/cache/stats").json()
    text = shown.tab.text("main")
    for cache in ("rows in place", "anchors", "parked and pinned", "state store"):
        assert cache in text
    for tier in ("resident", "park", "store", "disk", "spill"):
        assert tier in shown.tab.text("#tier-rows")
    last = told["last_turns"][0]
    row = shown.tab.text("#turn-rows tr")
    assert f"{last['prompt']:,}" in row and last["source"] in row and last["session"] in row
    assert told["model"] in shown.tab.text("header")
    assert "200 GB" in shown.tab.text("#writes") and "ok" in shown.tab.text("#write-level")


@needs_browser
def test_no_conversation_is_on_the_page(shown: Open) -> None:
    everything = shown.tab.run("document.documentElement.innerHTML")
    assert WORD not in everything and "secret-session" not in everything
    told = shown.http.get("/v1/cache/stats").text + shown.http.get("/metrics").text
    assert WORD not in told and "secret-session" not in told


@needs_browser
def test_page_cache_that_the_model_keeps_is_in_the_plan(
    shown: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "page cache" not in shown.tab.text("#memory")
    monkeypatch.setattr(shown.at.house.engine, "resident_files", lambda: 3 << 30)
    note = "document.querySelector('#memory-note').textContent"
    shown.tab.until(f"{note}.includes('page cache kept for the model 3')")


@needs_browser
def test_new_turns_come_by_themselves(shown: Open) -> None:
    before = shown.tab.run("document.querySelectorAll('#turn-rows tr').length")
    shown.says("Hello there", "another")
    shown.tab.until(f"document.querySelectorAll('#turn-rows tr').length > {before}")


@needs_browser
def test_settings_are_changed_with_the_token_alone(shown: Open) -> None:
    page, settings = shown.tab, shown.at.house.settings
    assert page.run("document.querySelector('#settings-save').disabled")
    page.put('[name="disk.budget_gb"]', "21.5")
    page.put('[name="serving.answer_tokens"]', "")
    page.click("#settings-save")
    page.until("document.querySelector('#settings-said.bad')")
    assert "token" in page.text("#settings-said")
    assert shown.at.house.settings == settings
    page.said.clear()  # A refused request is on the console.
    page.put("#token", TOKEN)
    page.click("#settings-save")
    page.until("document.querySelector('#settings-said.good')")
    new = shown.at.house.settings
    assert (new.disk.budget_gb, new.serving.answer_tokens) == (21.5, None)
    assert new.revision == settings.revision + 1
    assert new.memory == settings.memory, "what was not touched is not sent"
    assert shown.at.house.disk is not None
    assert shown.at.house.disk.config.budget_bytes == 21_500_000_000
    page.until("document.querySelector('#tier-rows').innerText.includes('21.5 GB')")


@needs_browser
def test_a_setting_that_can_not_be_is_said_and_changes_nothing(shown: Open) -> None:
    page, settings = shown.tab, shown.at.house.settings
    page.put("#token", TOKEN)
    page.put('[name="memory.slack_gib"]', "99999")
    page.click("#settings-save")
    page.until("document.querySelector('#settings-said.bad')")
    assert "memory: slack_gib must be below ceiling_gib" in page.text("#settings-said")
    page.put('[name="memory.slack_gib"]', "lots")
    page.click("#settings-save")
    page.until("document.querySelector('#settings-said').innerText.includes('valid number')")
    assert shown.at.house.settings == settings
    page.click("#settings-undo")
    page.until("document.querySelector('#settings-save').disabled")
    page.said.clear()


@needs_browser
def test_a_change_by_somebody_else_is_not_written_over(shown: Open) -> None:
    page = shown.tab
    page.put("#token", TOKEN)
    page.put('[name="spill.budget_gb"]', "33")
    other = {"spill": {"budget_gb": 44}}
    headers = {"authorization": f"Bearer {TOKEN}"}
    shown.http.put("/v1/settings", json=other, headers=headers).raise_for_status()
    page.click("#settings-save")
    page.until("document.querySelector('#settings-said.bad')")
    assert shown.at.house.settings.spill.budget_gb == 44
    page.click("#settings-undo")
    page.until("document.querySelector('[name=\"spill.budget_gb\"]').value === '44'")
    page.said.clear()


@needs_browser
def test_a_form_nobody_touched_follows_the_settings(shown: Open) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    other = {"writes": {"day_budget_gb": 123}}
    shown.http.put("/v1/settings", json=other, headers=headers).raise_for_status()
    shown.tab.until("document.querySelector('[name=\"writes.day_budget_gb\"]').value === '123'")


@needs_browser
def test_clearing_asks_once_and_then_clears(shown: Open) -> None:
    page, stack = shown.tab, shown.at.house.box.stack
    shown.says("Something long to keep. " * 40, "kept").raise_for_status()
    assert stack.store.held_bytes() or stack.resident.account.valid
    page.put("#token", TOKEN)
    page.click('[data-tier="ram"]')
    assert "?" in page.text('[data-tier="ram"]')
    assert stack.store.held_bytes() or stack.resident.account.valid
    page.click('[data-tier="ram"]')
    page.until("document.querySelector('#clear-note').innerText.includes('Cleared: ram')")
    assert stack.store.held_bytes() == 0 and stack.resident.account.valid == 0


@needs_browser
def test_a_chat_streams_and_says_what_was_cached(shown: Open) -> None:
    page = shown.tab
    for number, cached in ((1, False), (2, True)):
        page.put("#chat-text", "Ahoy!")
        page.click("#chat-send")
        page.until(
            f"document.querySelectorAll('.said.assistant .usage').length === {number} && "
            "document.querySelector('#chat-stop').disabled"
        )
        log = "[...document.querySelectorAll('.said.assistant')].at(-1)"
        assert page.run(f"{log}.querySelector('details .text').textContent") == "They greet me."
        assert page.run(f"{log}.querySelector(':scope > .text').textContent").startswith("Ahoy, ")
        usage = page.run(f"{log}.querySelector('.usage').textContent")
        row = shown.at.house.journal.rows[-1]
        assert f"cached {row.cached}, reread {row.prompt - row.cached}" in usage
        assert f"source {row.source}, why no more: {row.why}" in usage
        assert (row.cached > 0) is cached
    page.click("#chat-new")
    assert page.run("document.querySelector('#chat-log').children.length") == 0


@needs_browser
def test_stop_ends_the_turn(shown: Open) -> None:
    page, rows = shown.tab, shown.at.house.journal.rows
    before = len(rows)
    page.put("#chat-text", "Speak slowly")
    page.click("#chat-send")
    page.until("document.querySelector('.said.assistant > .text')")
    page.click("#chat-stop")
    page.until("document.querySelector('#chat-send').disabled === false")
    end = time.monotonic() + 10
    while len(rows) == before and time.monotonic() < end:
        time.sleep(0.02)
    assert rows[-1].finish == "cancelled" and rows[-1].output < 400
    assert "ended by you" in page.text(".said.assistant .usage")
    page.put("#chat-text", "Go on")
    page.click("#chat-send")
    page.until("document.querySelectorAll('.said.assistant').length === 2")
    page.until("document.querySelector('#chat-stop').disabled")
    assert rows[-1].cached > 0, "what was written before the stop is kept"


@needs_browser
def test_markup_in_an_answer_is_text(shown: Open) -> None:
    page = shown.tab
    page.put("#chat-text", f"Some markup please {MARKUP}")
    page.click("#chat-send")
    page.until("document.querySelector('.said.assistant > .text')?.textContent.includes('</b>')")
    page.until("document.querySelector('#chat-stop').disabled")
    assert page.run("document.querySelectorAll('#chat-log img, #chat-log b').length") == 0
    assert page.run("document.querySelector('.said.assistant > .text').textContent") == MARKUP
    assert page.run("document.title") == "moorage"


@needs_browser
def test_a_refused_request_is_said_in_the_chat(shown: Open) -> None:
    page = shown.tab
    page.put("#chat-text", "far too long " * 6_000)
    page.click("#chat-send")
    page.until("document.querySelector('.said.assistant .wrong')")
    assert "maximum context length" in page.text(".said.assistant .wrong")
    page.said.clear()


@needs_browser
def test_a_server_that_is_gone_is_said_with_the_age_of_the_figures(shown: Open) -> None:
    page = shown.tab
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.ask("Network.emulateNetworkConditions", offline=True, **offline)
    page.until("!document.querySelector('#alarm').hidden")
    assert "Figures are from" in page.text("#alarm")
    page.ask("Network.emulateNetworkConditions", offline=False, **offline)
    page.until("document.querySelector('#alarm').hidden")
    page.said.clear()


@needs_browser
@pytest.mark.parametrize("width", [1_440, 1_000, 480])
def test_nothing_is_wider_than_the_window(shown: Open, width: int) -> None:
    page, more = shown.tab, {"height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.ask("Emulation.setDeviceMetricsOverride", width=width, **more)
    root = "document.documentElement"
    assert page.run(f"{root}.scrollWidth <= {root}.clientWidth")
    page.ask("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_it_is_light_or_dark_as_the_system_is(shown: Open) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    seen = set()
    for scheme in ("light", "dark"):
        shown.tab.colours(scheme)
        seen.add(shown.tab.run(ground))
    assert len(seen) == 2


@needs_browser
def test_canary_a_script_that_is_put_into_the_page_does_not_run(page: Open) -> None:
    page.tab.open(f"{page.at.url}/")
    page.tab.run(
        """(() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'run'";
          document.body.append(script);
          document.body.setAttribute("onclick", "document.title = 'run'");
          document.body.click();
        })()"""
    )
    page.tab.until("document.title === 'moorage'")
    assert any("Content Security Policy" in said for said in page.tab.said)


@needs_browser
def test_canary_a_file_that_is_missing_is_heard(page: Open) -> None:
    page.tab.open(f"{page.at.url}/")
    page.tab.said.clear()
    page.tab.run("fetch('/page/nothing.css').then((found) => found.status)")
    end = time.monotonic() + 10
    while not any("404" in said for said in page.tab.said):
        assert time.monotonic() < end
        page.tab.run("1")
