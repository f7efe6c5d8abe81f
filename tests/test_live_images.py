"""Goal: a recorded chat with images replays exactly, and nothing of an old image is made again.

Method: a made-up recording in the shape of Open WebUI's: every turn sends all images again as the
same data: URLs, thoughts don't come back, answers come back stripped; one picture comes twice under
another encoding. It is replayed as it is and scrubbed, on the witness and on the random model with
its tower, and every request is held to a cold prefill. Canary: key ids that are the same for every
picture let one conversation resume on another's image, and the gate sees it.
"""

from __future__ import annotations

import itertools
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photos import attached, data_url, photo
from rawlines import WEBUI_AGENT, own, user, write
from suffix_files import SHA, documents_of, opened

from cache.host import OsFiles, SystemClock
from cache.suffix_store import SuffixConfig, SuffixStore
from cache.types import Ids
from engine.chat import omitted
from engine.chat.tokenizer import Tokenizer
from engine.pictures.leave_out import Cap
from engine.pictures.patches import named
from engine.pictures.picture import Picture
from replay.driver import Options, Replay
from replay.ledger import LedgerRow
from replay.readers.raw import read
from replay.tokens import Tokens
from replay.trace import Image, Trace
from replay.tracefile import read_trace, write_trace
from sim.jobs import SeededJobs
from sim.profile import load

TOKENIZER = Tokenizer()
BOARD = replace(load("spark-27b"), grid=64, window=4_096, drafts=2)
ROWS = 64
"""Of a photo of 96 by 96: small pictures are scaled up."""
QUESTIONS: list[tuple[str, list[tuple[str, str]]]] = [
    ("What is in these pictures?", [("a.png", data_url(photo(1))), ("b.png", data_url(photo(2)))]),
    ("Which is larger?", []),
    ("And in this one?", [("c.png", data_url(photo(3)))]),
    ("Is it the first one again?", [("d.png", data_url(photo(1), compress_level=0))]),
    ("Thanks", []),
]
PICTURES = [2, 2, 3, 4, 4]
"""Images of each prompt; the last one shows what the first does."""


def chat(path: Path, questions: list[tuple[str, list[tuple[str, str]]]] = QUESTIONS) -> Path:
    """A chat of these turns, whose images are all sent again at each."""
    return write(path, *lines(questions, "a", 0.0))


def lines(
    questions: list[tuple[str, list[tuple[str, str]]]], session: str, t: float
) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    out = []
    for turn, (question, photos) in enumerate(questions):
        messages = [*messages, attached(question, *photos) if photos else user(question)]
        parts = [["reasoning", "I look. " * 9], ["content", f"\n\nIt is noise, {turn} times. " * 6]]
        headers = {"X-OpenWebUI-Chat-Id": session}
        out.append(own(t + 10.0 * turn, messages, parts, agent=WEBUI_AGENT, headers=headers))
        messages = [*messages, {"role": "assistant", "content": parts[1][1].strip()}]
    return out


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(chat(tmp_path_factory.mktemp("raw") / "chat.jsonl"))


def replayed(trace: Trace, model: str, **board: Any) -> tuple[Replay, list[LedgerRow]]:
    replay = Replay([trace], Options(replace(BOARD, **board), model))
    rows = list(replay)
    assert all(row.checked is not None for row in rows)
    return replay, rows


def test_images_are_where_the_rows_are_and_parts_count_them(recorded: Trace) -> None:
    live = recorded.live
    assert live is not None
    for request, count in zip(recorded.requests, PICTURES, strict=True):
        rows = [row for i in request.images for row in range(i.offset, i.offset + i.rows)]
        assert np.flatnonzero(live.prompt(request.number) < 0).tolist() == rows
        parts = request.parts
        assert parts.images == count * ROWS == sum(image.rows for image in request.images)
        whole = parts.system + parts.tools + parts.history + parts.images
        assert whole == request.prompt_tokens and request.client == "openwebui"
        assert request.extends == (request.number - 1 if request.number else None)


def test_a_recording_brings_its_pixels_and_a_trace_has_none(recorded: Trace) -> None:
    assert recorded.live is not None
    for picture in recorded.live.pictures(4):
        assert picture.patches is not None
        assert named(picture.patches, picture.grid).digest == picture.digest
    drawn = Tokens(recorded).pictures(4)
    assert [picture.patches for picture in drawn] == [None] * 4
    assert [picture.rows for picture in drawn] == [ROWS] * 4


@pytest.fixture(scope="module", params=["witness", "random"])
def as_recorded(
    recorded: Trace, request: pytest.FixtureRequest
) -> tuple[str, Replay, list[LedgerRow]]:
    """The model's name, and the replay of the recording on it."""
    return request.param, *replayed(recorded, request.param)


def test_every_follow_up_resumes_at_the_end(
    as_recorded: tuple[str, Replay, list[LedgerRow]],
) -> None:
    model, replay, rows = as_recorded
    assert [row.source for row in rows] == ["cold"] + ["end"] * 4
    assert not [row.failure for row in rows if row.failure]
    encoded = replay.box.engine.encoded
    if model == "random":
        assert encoded is not None and encoded.misses == 3, "the tower read an image twice"


def test_without_alignment_the_images_still_are_not_read_again(tmp_path: Path) -> None:
    """The copy parts in the answer, behind the images: they lie below the line."""
    replay, rows = replayed(
        read(chat(tmp_path / "a.jsonl", QUESTIONS[:2])), "random", alignment="off"
    )
    assert not [row.failure for row in rows if row.failure]
    assert rows[1].source != "end" and rows[1].cached > 2 * ROWS
    assert replay.box.engine.encoded is not None and replay.box.engine.encoded.misses == 2


def test_a_scrubbed_trace_resumes_as_the_recording_does(
    recorded: Trace, as_recorded: tuple[str, Replay, list[LedgerRow]], tmp_path: Path
) -> None:
    model, _, theirs = as_recorded
    write_trace(recorded, tmp_path / "trace.jsonl")
    scrubbed = read_trace(tmp_path / "trace.jsonl")
    assert scrubbed == replace(recorded, name="trace") and scrubbed.live is None
    replay, ours = replayed(scrubbed, model)
    assert not [row.failure for row in ours if row.failure]
    assert [(r.source, r.cached, r.prompt) for r in ours] == [
        (r.source, r.cached, r.prompt) for r in theirs
    ]
    if model == "random":
        assert replay.box.engine.encoded is not None and replay.box.engine.encoded.misses == 3


def test_a_scrubbed_trace_tells_nobody_which_picture_was_sent(
    recorded: Trace, tmp_path: Path
) -> None:
    """The digests are equal within it, and neither the picture's own nor another trace's."""
    assert recorded.live is not None
    pictures = recorded.live.pictures(4)
    named = [image.digest for image in recorded.requests[4].images]
    assert named[0] == named[3] and len(set(named)) == 3
    assert len({picture.digest for picture in pictures}) == 3
    again = read(chat(tmp_path / "again.jsonl"))
    digests = {picture.digest.hex() for picture in pictures}
    digests |= {image.digest for image in again.requests[4].images}
    assert not digests & set(named)
    write_trace(recorded, tmp_path / "trace.jsonl")
    text = (tmp_path / "trace.jsonl").read_text()
    assert not [digest for digest in digests if digest in text] and "noise" not in text
    assert all(isinstance(image, Image) for image in recorded.requests[0].images)


def two_chats(folder: Path) -> Trace:
    """Two chats that differ in nothing but their picture."""
    ask = "What is in this picture?"
    one, two = ([(ask, [("a.png", data_url(photo(seed)))])] for seed in (1, 2))
    return read(write(folder / "two.jsonl", *lines(one, "a", 0.0), *lines(two, "b", 50.0)))


def test_the_same_words_about_another_picture_part_at_the_picture(tmp_path: Path) -> None:
    trace = two_chats(tmp_path)
    for model in ("witness", "random"):
        _, rows = replayed(trace, model)
        assert not [row.failure for row in rows if row.failure]
        assert rows[1].cached <= trace.requests[0].images[0].offset


def test_another_picture_in_an_earlier_question_parts_there(tmp_path: Path) -> None:
    """The answer after it comes back the same, and alignment must not look past the picture."""
    asked = deepcopy(lines(QUESTIONS[:1], "a", 0.0)) + lines(QUESTIONS[:2], "a", 0.0)[1:]
    content = asked[1]["body"]["messages"][0]["content"]
    assert content[3]["image_url"]["url"] == QUESTIONS[0][1][1][1]
    content[3]["image_url"]["url"] = data_url(photo(9))
    trace = read(write(tmp_path / "edited.jsonl", *asked))
    assert trace.requests[1].extends is None
    before, after = (request.images for request in trace.requests)
    assert before[0] == after[0] and before[1].digest != after[1].digest
    for model in ("witness", "random"):
        _, rows = replayed(trace, model)
        assert not [row.failure for row in rows if row.failure]
        assert rows[1].cached == after[1].offset // BOARD.grid * BOARD.grid > after[0].offset


def stored(recorded: Trace, folder: Path) -> list[list[int]]:
    """The documents of a suffix store after a replay of the recording."""
    files = OsFiles(folder)
    config, jobs = SuffixConfig(match_min=2), SeededJobs(0)
    store = SuffixStore.open(files, SHA, config, SystemClock(), jobs)
    assert isinstance(store, SuffixStore)
    assert not [r.failure for r in Replay([recorded], Options(BOARD, suffixes=store)) if r.failure]
    store.close()
    return documents_of(opened(files, cap=config.cap_bytes, readonly=True).text)


def parts_of_all(recorded: Trace) -> list[list[int]]:
    """The text of every prompt and answer as served, cut at its images."""
    assert recorded.live is not None
    live, parts = recorded.live, []
    for request in recorded.requests:
        whole = np.concatenate([live.prompt(request.number), live.output(request.number)])
        cuts = np.flatnonzero(np.diff(whole < 0)) + 1
        parts += [part.tolist() for part in np.split(whole, cuts) if len(part) and part[0] >= 0]
    return parts


def test_the_rows_of_images_never_reach_the_suffix_store(recorded: Trace, tmp_path: Path) -> None:
    documents, parts = stored(recorded, tmp_path), parts_of_all(recorded)
    assert len(documents) > 3
    start, end = (TOKENIZER.ids[f"<|vision_{name}|>"] for name in ("start", "end"))
    for document in documents:
        assert min(document) >= 0 and max(document) < TOKENIZER.vocab
        # What stood on both sides of an image stands in no document side by side.
        assert (start, end) not in set(itertools.pairwise(document))
    # The text around the images is there: each first prompt's stretch is some document.
    assert all(part in documents for part in parts[:2])


def test_canary_key_ids_in_the_suffix_store_are_seen(
    recorded: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that takes what it is given holds words that are no token's."""
    add = SuffixStore.add
    monkeypatch.setattr(
        SuffixStore, "add", lambda self, ids, *more: add(self, np.abs(ids.astype(np.int64)), *more)
    )
    highest = max(max(document) for document in stored(recorded, tmp_path))
    assert highest >= TOKENIZER.vocab


def forwarded_over_the_cap(path: Path) -> list[int]:
    """Tokens read by each turn of a chat with an image a turn and a cap of 4."""
    _, rows = replayed(read(path, cap=Cap(images=4)), "witness")
    assert not [row.failure for row in rows if row.failure]
    return [row.forwarded for row in rows]


def test_over_the_cap_a_turn_reads_again_only_once_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 14
    asked = [(f"And number {n}?", [(f"{n}.png", data_url(photo(n)))]) for n in range(turns)]
    path = chat(tmp_path / "long.jsonl", asked)
    ours = forwarded_over_the_cap(path)
    # What a turn brings by itself is its image, its question and the answer's end.
    new = 2 * ours[1]
    assert [turn for turn, tokens in enumerate(ours) if turn and tokens > new] == [4, 6, 8, 10, 12]
    monkeypatch.setattr(omitted, "left_out", lambda rows, cap: max(0, len(rows) - cap.images))
    naive = forwarded_over_the_cap(path)
    assert [turn for turn, tokens in enumerate(naive) if turn and tokens > new] == list(
        range(4, turns)
    )
    assert 3 * sum(ours) < 2 * sum(naive), (sum(ours), sum(naive))


def test_canary_one_key_for_all_pictures_is_seen_by_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def placeholder(self: Picture) -> Ids:
        return np.full(self.rows, -1, np.int32)

    monkeypatch.setattr(Picture, "ids", property(placeholder))
    trace = two_chats(tmp_path)
    _, rows = replayed(trace, "random")
    assert rows[1].cached > trace.requests[0].images[0].offset and rows[1].failure
