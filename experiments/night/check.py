"""Counts what a recorded night holds, from the requests alone, and says what is missing

usage: python -m experiments.night.check RAW...
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.night.model import side_kind, text_of
from experiments.night.words import CHARS_A_TOKEN

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request and its reply."""

    raw: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        """Header names in lower case."""
        return {name.lower(): value for name, value in self.raw["headers"]}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation that was sent."""
        return self.raw["body"]["messages"]

    @property
    def client(self) -> str:
        """opencode or Open WebUI."""
        return "opencode" if "x-session-id" in self.headers else "Open WebUI"

    @property
    def conversation(self) -> str:
        """The client's id of the session or chat."""
        headers = self.headers
        return headers.get("x-session-id") or headers.get("x-openwebui-chat-id", "")

    @property
    def folder(self) -> str:
        """The folder an opencode session works in."""
        found = re.search(r"Working directory: (.*)", text_of(self.messages[0]))
        return found[1].rsplit("/", 1)[-1] if found else ""

    @property
    def kind(self) -> str:
        """turn, subagent, title, compaction, followups, tags or queries."""
        if self.client == "Open WebUI":
            stream = self.raw["body"].get("stream")
            return "turn" if stream else side_kind(text_of(self.messages[-1])) or "other"
        if not self.raw["body"].get("tools"):
            texts = map(text_of, self.messages)
            return "compaction" if any("<conversation>" in text for text in texts) else "title"
        return "subagent" if "x-parent-session-id" in self.headers else "turn"

    @property
    def tokens(self) -> int:
        """The prompt, in characters of its JSON by four."""
        return len(json.dumps(self.raw["body"], ensure_ascii=False)) // CHARS_A_TOKEN

    @property
    def cut_in(self) -> str | None:
        """What was being sent when the client hung up."""
        reply = self.raw["reply"]
        if not reply["aborted"]:
            return None
        return reply["parts"][-1][0] if reply["parts"] else "nothing"


def read(paths: Iterable[Path]) -> tuple[list[Exchange], Counter[str]]:
    """(chat requests in order of arrival, other paths counted)."""
    exchanges, others = [], Counter[str]()
    for path in paths:
        for line in path.read_text().splitlines():
            raw = json.loads(line)
            assert raw["format"] == "moorage.raw" and raw["version"] == 1
            if raw["path"] == CHAT and raw["method"] == "POST":
                exchanges.append(Exchange(raw))
            else:
                others[f"{raw['method']} {raw['path']}"] += 1
    return sorted(exchanges, key=lambda one: one.raw["t"]), others


def turns_by_conversation(exchanges: list[Exchange]) -> dict[str, list[Exchange]]:
    """The main requests of each session and chat."""
    found: dict[str, list[Exchange]] = defaultdict(list)
    for one in exchanges:
        if one.kind == "turn":
            found[one.conversation].append(one)
    return found


def changes(turns: list[Exchange]) -> Counter[str]:
    """How each request of a conversation departs from the one before it."""
    found = Counter[str]()
    for before, after in itertools.pairwise(turns):
        old, new = before.messages, after.messages
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        if before.raw["body"].get("tools") != after.raw["body"].get("tools"):
            found["tools changed"] += 1
        if same == len(old) == len(new):
            found["regenerated"] += 1
        elif same == len(old):
            found["extended"] += 1
        elif old[same]["role"] == "system":
            found["system text changed"] += 1
        elif before.client == "Open WebUI" and new[same]["role"] == "user":
            found["user message changed"] += 1
        else:
            found["parted in the history"] += 1
    return found


def overlap_s(exchanges: list[Exchange]) -> float:
    """Recorded seconds during which both clients had a request open."""
    edges = []
    for one in exchanges:
        edges += [(one.raw["t"], one.client, 1), (one.raw["t_end"], one.client, -1)]
    open_now, total, last = Counter[str](), 0.0, 0.0
    for at, client, step in sorted(edges):
        if open_now["opencode"] and open_now["Open WebUI"]:
            total += at - last
        open_now[client] += step
        last = at
    return total


def switches(exchanges: list[Exchange], client: str) -> int:
    """How often a client went back to a conversation that was not its last."""
    seen, last, count = set[str](), "", 0
    for one in exchanges:
        if one.client == client and one.kind == "turn" and one.conversation != last:
            count += one.conversation in seen
            seen.add(one.conversation)
            last = one.conversation
    return count


def broken_calls(exchanges: list[Exchange]) -> int:
    """Tool calls whose arguments are no JSON, of replies that were not cut."""
    count = 0
    for one in exchanges:
        for part in one.raw["reply"]["parts"] if not one.cut_in else ():
            if part[0] == "tool":
                try:
                    json.loads(part[3])
                except ValueError:
                    count += 1
    return count


def images(exchanges: list[Exchange]) -> int:
    """Messages with a part that is not text."""
    contents = [m.get("content") for one in exchanges for m in one.messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(part.get("type") != "text" for part in parts)


def measure(exchanges: list[Exchange]) -> dict[str, Any]:
    """Everything that is counted."""
    conversations = turns_by_conversation(exchanges)
    of_client = {turns[0].conversation: turns[0].client for turns in conversations.values()}
    largest = {name: max(one.tokens for one in turns) for name, turns in conversations.items()}
    departures: dict[str, Counter[str]] = defaultdict(Counter)
    for turns in conversations.values():
        departures[turns[0].client] += changes(turns)
    kinds = Counter(f"{one.client} {one.kind}" for one in exchanges)
    cuts = Counter(f"{one.client} in {one.cut_in}" for one in exchanges if one.cut_in)
    marks = [one.raw.get("mark", {}) for one in exchanges]
    thinks = [mark["think_s"] for mark in marks if mark.get("think_s") is not None]
    reasoned = Counter(
        one.client
        for one in exchanges
        if any(p[0] == "reasoning" for p in one.raw["reply"]["parts"])
    )
    back = Counter(
        one.client for one in exchanges if any("reasoning_content" in m for m in one.messages)
    )
    thoughts = [
        len(part[1]) // CHARS_A_TOKEN
        for one in exchanges
        for part in one.raw["reply"]["parts"]
        if part[0] == "reasoning"
    ]
    children = {
        one.conversation for one in exchanges if one.client == "opencode" and one.kind == "subagent"
    }
    spans_h = _hours(exchanges)
    return {
        "requests": len(exchanges),
        "kinds": dict(sorted(kinds.items())),
        "opencode sessions": sum(client == "opencode" for client in of_client.values()),
        "opencode folders": sorted({one.folder for one in exchanges if one.folder}),
        "Open WebUI chats": sum(client == "Open WebUI" for client in of_client.values()),
        "sub-agent sessions": len(children),
        "largest prompts (tokens)": sorted(largest.values(), reverse=True)[:8],
        "past 100k tokens": sum(tokens > 100_000 for tokens in largest.values()),
        "prompt tokens": sum(one.tokens for one in exchanges),
        "cut": dict(sorted(cuts.items())),
        "departures": {client: dict(found) for client, found in departures.items()},
        "returns to an older conversation": {
            client: switches(exchanges, client) for client in ("opencode", "Open WebUI")
        },
        "reasoning answered": dict(reasoned),
        "reasoning sent back": dict(back),
        "longest thoughts (tokens)": sorted(thoughts, reverse=True)[:5],
        "plan-mode requests": sum("Plan Mode" in text_of(one.messages[-1]) for one in exchanges),
        "broken tool calls": broken_calls(exchanges),
        "both clients at once (s)": round(overlap_s(exchanges), 1),
        "not 200": sum(one.raw["reply"]["status"] != 200 for one in exchanges),
        "without a mark": sum(not mark for mark in marks),
        "unplanned": sum("unknown" in mark.get("label", "") for mark in marks),
        "images": images(exchanges),
        "think p50 (s)": round(median(thinks), 1) if thinks else None,
        "hours": round(sum(spans_h.values()), 2),
        "hours of each part": {part: round(hours, 2) for part, hours in spans_h.items()},
    }


def _hours(exchanges: list[Exchange]) -> dict[str, float]:
    """Real hours of each part: recorded ones times its factor."""
    spans: dict[str, list[float]] = defaultdict(list)
    factors = {}
    for one in exchanges:
        mark = one.raw.get("mark", {})
        part = mark.get("part", "")
        factors[part] = mark.get("factor", 1.0)
        spans[part] += [one.raw["t"], one.raw["t_end"]]
    return {part: (max(times) - min(times)) * factors[part] / 3600 for part, times in spans.items()}


def missing(found: dict[str, Any]) -> list[str]:
    """What a night must have and this one lacks."""
    kinds, cut, page = found["kinds"], found["cut"], found["departures"].get("Open WebUI", {})
    coding = found["departures"].get("opencode", {})
    wanted = {
        "600 requests": found["requests"] >= 600,
        "8 opencode sessions": found["opencode sessions"] >= 8,
        "4 folders": len(found["opencode folders"]) >= 4,
        "12 chats": found["Open WebUI chats"] >= 12,
        "2 prompts past 100k tokens": found["past 100k tokens"] >= 2,
        "2 compactions": kinds.get("opencode compaction", 0) >= 2,
        "sub-agents": found["sub-agent sessions"] >= 2,
        "opencode titles": kinds.get("opencode title", 0) >= 8,
        "Open WebUI side requests": all(
            kinds.get(f"Open WebUI {kind}", 0) for kind in ("title", "tags", "followups", "queries")
        ),
        "a cut in each kind of part": all(
            cut.get(f"opencode in {part}") for part in ("reasoning", "content", "tool")
        ),
        "the page's stop": cut.get("Open WebUI in content") and cut.get("Open WebUI in reasoning"),
        "reasoning in both clients": len(found["reasoning answered"]) == 2,
        "thoughts of thousands of tokens": found["longest thoughts (tokens)"][:1] > [3000],
        "plan, then build": found["plan-mode requests"] and coding.get("tools changed"),
        "an AGENTS.md edit": coding.get("system text changed"),
        "a regenerate": page.get("regenerated"),
        "an edit": page.get("user message changed"),
        "chats used in turn": min(found["returns to an older conversation"].values()) > 0,
        "both clients at once": found["both clients at once (s)"] > 0,
        "a broken call": found["broken tool calls"],
        "answers by the plan": not found["unplanned"] and not found["without a mark"],
        "no failures": not found["not 200"],
        "no images": not found["images"],
        "3 to 8 hours": 3 <= found["hours"] <= 8,
    }
    return [what for what, there in wanted.items() if not there]


def main() -> int:
    """Prints the counts; 1 when something is missing."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("raw", type=Path, nargs="+")
    exchanges, others = read(parser.parse_args().raw)
    found = measure(exchanges)
    for name, value in {**found, "other requests": dict(others)}.items():
        sys.stdout.write(f"{name}: {json.dumps(value, ensure_ascii=False)}\n")
    lacks = missing(found)
    sys.stdout.write(f"missing: {', '.join(lacks) or 'nothing'}\n")
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
