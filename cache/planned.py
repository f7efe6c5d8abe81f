"""Planned stops, starts and pauses: conversations go to the drive, the last comes back."""

from __future__ import annotations

from cache.ports import Model, Stop
from cache.source import Source, in_place, parked
from cache.spill.tier import Spill
from cache.stack import Stack
from cache.types import Line, common_prefix


def drain(stack: Stack, model: Model) -> int:
    """The process is about to end, and nothing is served: what is in memory goes to the drive, the
    conversation in place last and remembered; how many are there now."""
    spill = stack.spill
    if spill is None:
        return 0
    stack.leave()
    saved = 0
    for source in reversed(_conversations(stack, model)):
        saved += spill.writer.save(source, "drain").ok
    account = stack.resident.account
    if account.goes_on and account.valid:
        spill.remember(account)
    return saved


def read_back(stack: Stack, model: Model) -> Line | None:
    """A process has started, and nothing was served: the conversation that was in place at the last
    planned stop comes back; where it resumes, or None."""
    spill = stack.spill
    assert stack.resident.account.valid == 0, "something is in place"
    spilled = spill.last(stack.resident.account) if spill is not None else None
    if spilled is None or spilled.entry.account is None:
        return None
    line = spilled.entry.account.best_line(spilled.entry.account.valid)
    assert line is not None
    if line.tokens >= model.window or not stack.exchange.come_back(spilled, line):
        return None
    return line


def pause(stack: Stack, model: Model, stop: Stop) -> int:
    """Nobody has asked for anything for a while: what is in memory is written ahead, the newest
    first, until `stop`; how many were written whole. Nothing leaves memory."""
    spill = stack.spill
    if spill is None or not spill.config.idle_s:
        return 0
    stack.leave()
    done = 0
    for source in _conversations(stack, model):
        here = source.account is stack.resident.account
        least = spill.config.tokens_min if here else spill.config.park_tokens_min
        if stop():
            break
        worth = source.account.valid >= least and not source.account.left
        if worth and _is_news(spill, source):
            done += spill.writer.save(source, "idle", stop).ok
    return done


def _conversations(stack: Stack, model: Model) -> list[Source]:
    """What memory holds that somebody may come back to: in place, then by when it was used."""
    found = []
    if stack.resident.account.goes_on:
        found.append(in_place(stack.resident.account, model))
    entries = sorted(stack.park.entries, key=lambda entry: -entry.used_turn)
    return found + [parked(entry, model) for entry in entries if entry.kind == "park"]


def _is_news(spill: Spill, source: Source) -> bool:
    """Whether the drive has so much less of it that writing it ahead is worth the bytes."""
    account, entry = source.account, spill.shelf.like(source.account)
    if entry is None or entry.account is None:
        return True
    grown = account.valid - common_prefix(entry.account.ids, account.ids)
    return grown >= spill.config.idle_tokens_min
