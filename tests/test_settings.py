"""The settings document: changes, refusals, units, its file, and what running caches do with it.

Method: patches by hand and drawn ones; files in memory with a fault at every call, and cut by power
losses; a box with a pool, a store and both tiers on a simulated drive. Covers serve.settings,
serve.sections, serve.settings_file and serve.settings_apply.
"""

from __future__ import annotations

import errno
import json
import math
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import GRID, box, engine, serve, spill, tier, tokens

from cache.budget import Budget
from cache.config import StackConfig
from cache.disk.config import DiskConfig
from cache.host import OsFiles
from cache.levels import levels_of
from cache.meet import Switch, exactly
from cache.spill.config import SpillConfig
from cache.types import Limits
from cache.writeguard import GuardConfig, WriteGuard
from engine.bad import BadInput
from engine.box import Box
from serve.settings import MACHINE_BYTES_MIN, VERSION, Settings, Stale, parsed
from serve.settings_apply import Running, Unwritten, put
from serve.settings_file import BYTES_MAX, NAME, SettingsFile
from sim.clock import VirtualClock
from sim.crash import crash_states
from sim.faults import Fault
from sim.files import SimFiles
from sim.pending import Start

# the document


def test_the_usual_document_gives_every_tier_its_own_usual_settings() -> None:
    usual = Settings()
    assert usual.stack_config() == StackConfig()
    assert usual.disk_config() == DiskConfig()
    assert usual.spill_config() == SpillConfig()
    assert usual.guard_config() == GuardConfig()
    assert usual.limits() == Limits(70 * 2**30, 77 * 2**30, 2 * 2**30)
    assert usual.serving.thinking.efforts["none"] == 0


def test_a_change_is_one_revision_on_and_leaves_everything_else() -> None:
    old = Settings()
    new = old.changed({"disk": {"budget_gb": 20, "mode": "read"}, "alignment": "off"})
    assert new.revision == old.revision + 1 == 1
    assert (new.disk.budget_gb, new.disk.mode, new.alignment) == (20, "read", "off")
    assert new.disk_config().budget_bytes == 20_000_000_000
    assert new.disk.ttl_days == old.disk.ttl_days and new.memory == old.memory
    assert old == Settings(), "a document never changes"


def test_a_patch_that_changes_nothing_is_no_revision() -> None:
    now = Settings().changed({"writes": {"day_budget_gb": 5}})
    assert now.changed({"writes": {"day_budget_gb": 5.0}}) is now
    assert now.changed(now.as_json()) is now
    assert now.changed({}) is now


def test_a_patch_for_another_revision_is_stale() -> None:
    now = Settings().changed({"alignment": "off"})
    assert now.changed({"revision": 1, "alignment": "full"}).revision == 2
    for other in (0, 2, -1):
        with pytest.raises(Stale, match="1 is"):
            now.changed({"revision": other, "alignment": "full"})


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"disk": {"budget": 3}}, "disk.budget: there is no such setting"),
        ({"dsik": {}}, "dsik: there is no such setting"),
        ({"disk": None}, "disk: an object of settings is wanted"),
        ({"disk": {"mode": "maybe"}}, "disk.mode: "),
        ({"disk": {"budget_gb": "16"}}, "disk.budget_gb: "),
        ({"disk": {"budget_gb": True}}, "disk.budget_gb: "),
        ({"disk": {"ttl_days": 0}}, "disk.ttl_days: "),
        ({"disk": {"admit_after": 1.5}}, "disk.admit_after: "),
        ({"disk": {"admit_after": 0}}, "disk.admit_after: "),
        ({"spill": {"budget_gb": math.inf}}, "spill.budget_gb: "),
        ({"spill": {"codec": "zip"}}, "spill.codec: "),
        ({"memory": {"peak_gib": 3}}, "memory: peak_gib must not be below ceiling_gib"),
        ({"memory": {"slack_gib": 70}}, "memory: slack_gib must be below ceiling_gib"),
        ({"memory": {"store_gib": -1}}, "memory.store_gib: "),
        ({"memory": {"store_gib": math.nan}}, "memory.store_gib: "),
        ({"memory": {"store_gib": 1e30}}, "memory.store_gib: "),
        ({"writes": {"hard_factor": 0.5}}, "writes.hard_factor: "),
        ({"writes": {"idle_share": 1.5}}, "writes.idle_share: "),
        ({"serving": {"thinking": {"low": -1}}}, "serving.thinking.low: "),
        ({"serving": {"thinking": {"lots": 1}}}, "serving.thinking.lots: there is no such setting"),
        ({"serving": {"thinking_phrase": "\ud800"}}, "serving.thinking_phrase: "),
        ({"serving": {"keepalive_s": 0}}, "serving.keepalive_s: "),
        ({"serving": {"answer_tokens": 0}}, "serving.answer_tokens: "),
        ({"alignment": "spans"}, "alignment: "),
        ({"compaction": {"prepare": 1}}, "compaction.prepare: "),
        ({"version": 2}, "version: 2 is a later one"),
        ({"version": True}, "version: "),
        ({"version": 0}, "version: "),
        ({"revision": 0.0}, "revision: a whole number"),
        ({"revision": None}, "revision: a whole number"),
        ([], "settings: an object"),
        ({"a\nb": 1}, r"a\\nb: there is no such setting"),
        ({"x" * 4_000: 1}, "x{80}: there is no such setting"),
        ({"disk": {"a": 1, "b": 2, "c": 3}}, r"disk\.a: there is no such setting \(and 2 more\)"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line_that_names_it(patch: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}") as refused:
        Settings().changed(patch)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200
    assert not isinstance(refused.value, Stale)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(
                [
                    "disk",
                    "memory",
                    "serving",
                    "thinking",
                    "mode",
                    "ttl_days",
                    "budget_gb",
                    "low",
                    "x",
                ]
            ),
            inner,
            max_size=3,
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*Settings.model_fields, "x"]), VALUES, max_size=3))
def test_whatever_is_sent_is_a_document_or_one_line(patch: dict[str, Any]) -> None:
    try:
        new = Settings().changed(patch)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    assert Settings.from_json(json.loads(json.dumps(new.as_json()))) == new
    new.limits(), new.stack_config(), new.disk_config(), new.spill_config(), new.guard_config()


def test_a_smaller_machine_has_its_share_of_the_memory() -> None:
    board, small = Settings.for_machine(2**37), Settings.for_machine(8 * 2**30)
    assert board == Settings()
    assert 0 < small.memory.ceiling_gib < 8 and small.memory.peak_gib < 8
    assert small.memory.guest_tokens == board.memory.guest_tokens
    assert Settings.for_machine(0) == Settings.for_machine(MACHINE_BYTES_MIN)


# the file


def test_what_is_saved_is_what_the_next_start_loads(tmp_path: Path) -> None:
    file = SettingsFile(OsFiles(tmp_path), str(tmp_path))
    usual = Settings.for_machine(2**34)
    assert file.load(usual) is usual, "no file is no error"
    now = usual.changed({"disk": {"budget_gb": 3}, "serving": {"thinking_phrase": "Schluß.\n"}})
    assert file.save(now) == ""
    assert file.load(Settings()) == now
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_file_that_says_less_is_completed_by_the_usual_document(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"revision": 7, "memory": {"park_gib": 9}}')
    usual = Settings.for_machine(2**33)
    found = SettingsFile(OsFiles(tmp_path)).load(usual)
    assert (found.revision, found.memory.park_gib) == (7, 9)
    assert found.memory.ceiling_gib == usual.memory.ceiling_gib


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"disk": {"budget_gb": NaN}}',
        b'{"disk": {"budget_gb": -1}}',
        b'{"version": 2, "new": 1}',
        b'{"revision": -1}',
        b"[" * 100_000,
        b" " * (BYTES_MAX + 1),
    ],
)
def test_a_file_that_is_no_good_is_one_line_and_stays_as_it_is(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(BadInput, match=rf"^{tmp_path}/{NAME}: ") as refused:
        SettingsFile(OsFiles(tmp_path), f"{tmp_path}/").load(Settings())
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
    assert (tmp_path / NAME).read_bytes() == content


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(BadInput, match=NAME):
        SettingsFile(OsFiles(tmp_path)).load(Settings())


def test_a_failure_anywhere_leaves_the_old_document_or_the_new_whole() -> None:
    old, new = Settings(), Settings().changed({"alignment": "off"})
    files = _saved(old)
    assert SettingsFile(files).save(new) == ""
    for number in range(files.calls):
        hurt = _saved(old)
        hurt.fault = Fault(number, errno.EIO, half=True, reverts=True)
        why = SettingsFile(hurt).save(new)
        hurt.fault = None
        found = SettingsFile(hurt).load(Settings())
        assert found == new if not why else found in (old, new)
        assert not hurt.handles and hurt.failed == 1


def test_a_power_cut_leaves_the_old_document_or_the_new() -> None:
    old, new = Settings(), Settings().changed({"alignment": "off"})
    files = _saved(old)
    assert SettingsFile(files).save(new) == ""
    files.note("saved")
    seen = set()
    for left in crash_states(Start.of({NAME: _text(old)}), files.log):
        found = SettingsFile(SimFiles(left.files, direct=False)).load(Settings())
        seen.add((found.revision, left.notes))
    assert seen == {(0, ()), (1, ()), (1, ("saved",))}


def test_canary_a_file_written_in_place_is_torn_by_a_power_cut() -> None:
    files = _saved(Settings())
    handle = files.open(NAME)
    files.write(handle, 0, _text(Settings().changed({"alignment": "off"})))
    files.fsync(handle)
    broken = 0
    for left in crash_states(Start.of({NAME: _text(Settings())}), files.log):
        try:
            SettingsFile(SimFiles(left.files, direct=False)).load(Settings())
        except BadInput:
            broken += 1
    assert broken


def _saved(settings: Settings) -> SimFiles:
    return SimFiles({NAME: _text(settings)}, direct=False)


def _text(settings: Settings) -> bytes:
    return json.dumps(settings.as_json()).encode()


# what runs


class Room:
    """An allocator that has all the memory there is."""

    def __init__(self, on: Box) -> None:
        self._on = on

    def allocated_bytes(self) -> int:
        return sum(self._on.stack.held_bytes().values())

    def reserve_bytes(self) -> int:
        return 0

    def give_back(self, keep_bytes: int) -> None:
        pass

    def mark(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return self.allocated_bytes()


def running(**more: Any) -> Running:
    """A witness with every cache, both tiers and a budget, on a drive with no floor."""
    of, clock = engine("witness"), VirtualClock()
    guard = WriteGuard(clock, GuardConfig())
    disk = tier(SimFiles(), of, clock=clock, guard=guard)
    conversations = spill(SimFiles(), of, clock=clock, guard=guard)
    meets = Switch(exactly)
    room = {"park_rows": 1_024, "store_bytes": 2**30} | more
    on = box(of, meeting=meets, disk=disk, spill=conversations, **room)
    on.budget = Budget(Limits(2**40, 2**40, 0), Room(on), of.cost)
    on.budget.over(levels_of([(on.stack, of)]))
    return Running(on, meets, disk, conversations, guard)


HERE = Settings().changed({"disk": {"min_free_gb": 0}, "spill": {"min_free_gb": 0}})
"""On a drive with no floor."""


def test_a_change_reaches_every_tier_and_the_file() -> None:
    on, files = running(), SimFiles(direct=False)
    new = put(
        {
            "disk": {"mode": "read", "budget_gb": 1, "ttl_days": 2},
            "spill": {"codec": "raw", "ttl_hours": 3, "idle_s": 0},
            "writes": {"day_budget_gb": 9},
            "memory": {"ceiling_gib": 3, "peak_gib": 4, "slack_gib": 0.5, "guest_tokens": 17},
            "alignment": "off",
        },
        HERE,
        on,
        SettingsFile(files),
    )
    assert on.disk is not None and on.spill is not None and on.guard is not None
    assert (on.disk.config.mode, on.disk.config.budget_bytes) == ("read", 10**9)
    assert on.disk.config.ttl_s == 2 * 86_400
    assert (on.spill.config.codec.mode, on.spill.config.ttl_s) == ("raw", 3 * 3_600)
    assert on.spill.config.block_rows == GRID, "what shapes files stays"
    assert on.guard.config.budget_bytes == 9 * 10**9
    assert on.box.budget is not None
    assert on.box.budget.limits == Limits(3 * 2**30, 4 * 2**30, 2**29)
    assert on.box.stack.config.guest.tokens_max == 17
    assert not on.meets.on
    assert SettingsFile(files).load(Settings()) == new


def test_smaller_caches_give_back_at_once_and_the_next_turns_are_right() -> None:
    on = running()
    for session in ("a", "b", "c"):
        serve(on.box, tokens(700, ord(session)), tokens(30), session=session)
    held = on.box.stack.held_bytes()
    assert held["park"] and held["store"] and held["anchors"]
    gone = dict.fromkeys(("anchors_gib", "park_gib", "pin_gib", "store_gib"), 0)
    now = put({"memory": gone}, HERE, on)
    held = on.box.stack.held_bytes()
    kept = on.box.stack.config.anchors.newest_kept * on.box.engine.cost().anchor_bytes
    assert held["park"] == held["store"] == 0
    assert held["anchors"] <= kept
    on.box.stack.check()
    serve(on.box, tokens(700, ord("a")), tokens(30), session="a")
    put({"memory": {"park_gib": 1, "store_gib": 1}}, now, on)
    serve(on.box, tokens(700, ord("b")), tokens(30), session="b")
    assert on.box.stack.held_bytes()["park"]


def test_a_lower_ceiling_sheds_before_the_next_request() -> None:
    on = running()
    for session in ("a", "b"):
        serve(on.box, tokens(700, ord(session)), tokens(30), session=session)
    held = on.box.stack.held_bytes()
    assert held["store"]
    least_gib = (sum(held.values()) - held["store"]) / 2**30
    put({"memory": {"ceiling_gib": least_gib, "slack_gib": 0}}, HERE, on)
    assert on.box.stack.held_bytes()["store"] == 0
    assert on.box.budget is not None and on.box.budget.shed_bytes


def test_what_the_drive_does_not_take_does_not_hold() -> None:
    on, files = running(), SimFiles(direct=False)
    files.fault = Fault(0, errno.ENOSPC, for_ever=True)
    now = HERE
    with pytest.raises(Unwritten, match=r"settings\.json: "):
        put({"alignment": "off"}, now, on, SettingsFile(files))
    assert on.meets.on


def test_what_is_not_there_can_not_be_set() -> None:
    on = running()
    bare = Running(box(engine("witness")), Switch(exactly))
    for name in ("disk", "spill"):
        with pytest.raises(ValueError, match=f"^{name}: nothing is kept on a drive"):
            put({name: {"budget_gb": 3}}, Settings(), bare)
    with pytest.raises(ValueError, match=r"^writes: "):
        put({"writes": {"day_budget_gb": 3}}, Settings(), bare)
    with pytest.raises(ValueError, match=r"^memory: nobody counts"):
        put({"memory": {"slack_gib": 1}}, Settings(), bare)
    assert on.disk is not None
    on.disk.configure(DiskConfig())
    with pytest.raises(ValueError, match=r"^disk\.min_free_gb: at least 50 GB"):
        put({"disk": {"min_free_gb": 49}}, Settings(), on)
    assert put({"disk": {"min_free_gb": 60}}, Settings(), on).revision == 1


def test_json_that_is_none_is_said_where() -> None:
    with pytest.raises(ValueError, match=r"^line 2: "):
        parsed(b"{\n]")
    assert parsed(b'{"version": 1}') == {"version": VERSION}
