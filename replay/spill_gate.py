"""The spill's gate on a real drive: conversations that come back, held to one that never left"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cache.direct import DirectFiles
from cache.format import Header, Layout, Part, read_header
from cache.spill.codec import Mode
from replay.gate_case import Case, flip
from replay.spill_home import ONE, Said, State, Talk, fresh, home, twin

MODES: tuple[Mode, ...] = ("raw", "planes")
STEPS = 36
"""How often `gate` says that it has come further."""
KEPT = 4
"""The newest grid anchors, which are written."""
_DAMAGED = 1
"""Number of the block that is made wrong."""
_OTHER: dict[Mode, Mode] = {"raw": "planes", "planes": "raw"}


def gate(folder: Path, case: Case, went_on: Callable[[int], None] = lambda steps: None) -> str:
    """Save conversations on a drive and bring them back, under each codec; why that failed.

    After an eviction, in a new process, after a second save under the other codec, and after a file
    was made wrong, two ways. Rows, copies, logits and the next turn's tokens are those of a twin
    whose conversation never left its memory. Empty when all held. Raises BadInput for a folder that
    is no good.
    """
    talk = twin(case)
    for mode in MODES:
        for why in _steps(folder / mode, case, mode, talk):
            if why:
                return f"{mode}: {why}"
            went_on(1)
    return ""


def _steps(folder: Path, case: Case, mode: Mode, talk: Talk) -> Iterator[str]:
    """What is wrong after each step."""
    with home(case, folder, mode) as first:
        for number, source in ((0, "cold"), (1, "end")):
            said = first.says(talk.prompts[number], ONE)
            yield _apart("before anything left", said, talk.said[number], source)
        first.stranger()
        wrote = [event for event in first.told("write") if event.why.startswith("evict")]
        yield "" if wrote else "what a stranger's prompt replaced was not written"
        said = first.says(talk.prompts[2], ONE)
        yield _apart("after an eviction", said, talk.said[2], "spill.end")
        yield "" if first.stops() else "at a planned stop nothing was saved"
    yield from _again(folder, case, mode, talk)
    for damage, what in ((flip, "a damaged block"), (reseal, "a block of other rows")):
        yield from _damaged(folder, case, mode, talk, damage, what)


def _again(folder: Path, case: Case, mode: Mode, talk: Talk) -> Iterator[str]:
    """A new process: what is in place, what it answers, and what it writes of what it added."""
    what, grid = "in a new process", case.board.grid
    seen = fresh(case, folder, _OTHER[mode], talk.prompts[3])
    if isinstance(seen, str):
        yield f"{what}: {seen}"
        return
    yield _state(what, seen.back, talk.said[2].state)
    yield _apart(f"{what}, the next turn", seen.said, talk.said[3], "end")
    kept = [name for name, written in seen.before.items() if seen.after.get(name) == written]
    had = talk.said[2].rows // grid
    new, grew = len(seen.after) - len(kept), -(-talk.said[3].rows // grid) - had
    told = f"a second save: {len(kept)} blocks kept and {new} written, not {had} and {grew}"
    yield "" if (len(kept), new) == (had, grew) else told
    with home(case, folder, mode) as one:
        line = one.comes_back()
        yield _state("after a second save", one.state(), talk.said[3].state)
        yield "" if line is not None else "after a second save nothing came back"


def _damaged(
    folder: Path,
    case: Case,
    mode: Mode,
    talk: Talk,
    damage: Callable[[DirectFiles, str], None],
    what: str,
) -> Iterator[str]:
    """A wrong file costs the entry and no answer."""
    with home(case, folder, mode) as one:
        name = one.block(_DAMAGED)
        if not name:
            yield f"before {what}: the conversation is not on the drive"
            return
        damage(one.files, name)
        came = one.comes_back() is not None
        yield f"{what}: nobody noticed that {name} is wrong" if came else ""
        yield "" if one.told("damage") else f"{what}: nobody said that {name} is wrong"
        yield f"{what}: its entry is still there" if one.block(_DAMAGED) else ""
        said = one.says(talk.prompts[3], ONE, cold=True)
        wrong = said.why or ("" if said.source == "cold" else f"it came from {said.source}")
        yield f"after {what}: {wrong}" if wrong else ""
        one.stops()


def reseal(files: DirectFiles, name: str) -> None:
    """Change one bit of a file's last section, and make its checksum right again."""
    header = read_header(files, name)
    assert isinstance(header, Header), header
    parts = [Part(section.name, section.dtype, section.shape) for section in header.sections]
    layout = Layout(header.kind, header.meta, parts)
    image = files.buffer(layout.nbytes)[: layout.nbytes]
    handle = files.open(name)
    try:
        files.start_read(handle, 0, image).wait()
        image[header.sections[-1].stop - 1] ^= 1
        files.start_write(handle, 0, layout.seal(image)).wait()
        files.fsync(handle)
    finally:
        files.close(handle)


def _apart(what: str, said: Said, wanted: Said, source: str) -> str:
    """What of a turn is not as the twin's, or that something else served it."""
    if said.source != source:
        found = f"{said.source}, {said.cached} rows instead of {source}"
        return f"{what}: {found}{said.losses}"
    if said.logits != wanted.logits:
        return f"{what}: logits differ{said.losses}"
    if said.answer != wanted.answer:
        return f"{what}: the answer's tokens differ{said.losses}"
    return _state(what, said.state, wanted.state)


def _state(what: str, state: State, wanted: State) -> str:
    """What is not the twin's; all must be there but the copies that no save takes."""
    grid = [name for name in wanted if name.startswith("the grid anchor")]
    others = [name for name in wanted if name.startswith(("rows", "the end"))]
    for name in (*others, *grid[-KEPT:]):
        if name not in state:
            return f"{what}: {name} is missing"
    for name, digest in state.items():
        if wanted.get(name) != digest:
            return f"{what}: {name} differs" if name in wanted else f"{what}: {name} is too much"
    return ""
