"""Adoption: which fingerprints' files hold the rows that the present one would compute.

A new formula gives the same tree another fingerprint, and the files of the old one would be swept
for nothing. So the first start under a formula adopts what each formula before it gives on this
very tree, and writes the equivalence down. From then on the record alone decides: an older formula
is blind to what the new one was made for, and after a change that only the new one sees it would
call files equal that are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cache.fingerprint import FORMULA, digest
from cache.format import Bad, read_record, write_record
from cache.ports import Files

EQUAL = "equal"
"""The record: {formula: {fingerprint: the one it equals}}. A formula in it is adopted no more."""
INPUTS = "inputs"
"""Records of what fingerprints were made of: inputs-<their first 12 digits>."""
KEPT = 8
"""Of those records: the present one's and the latest before it."""

_INPUTS_NAME = re.compile(rf"{INPUTS}-[0-9a-f]{{12}}")

Equal = dict[str, dict[str, str]]


def accepted(
    files: Files, present_inputs: Mapping[str, str], older: Mapping[str, Sequence[str]]
) -> frozenset[str]:
    """The fingerprints whose files may be read in a directory, the present one among them.

    `older` has what each older formula gives on this tree. Whatever fails costs only what would
    have been adopted; an adoption that could not be written down for good does not count. Raises
    nothing.
    """
    present = digest(present_inputs)
    before = _recorded(files)
    started = any(_started(record) for name, record in before.items() if name != _name(present))
    known = _known(files, started)
    if isinstance(known, Bad):
        equal: Equal = {}
        if not (known.future or known.foreign or known.error):
            write_record(files, EQUAL, EQUAL, {formula: {} for formula in older})
    else:
        equal = _adopted(files, known, older, present)
    _record(files, present, dict(present_inputs), before)
    found = {present}
    # What an equal fingerprint had adopted itself is equal too.
    pairs = [pair for of in equal.values() for pair in of.items()]
    while more := {old for old, new in pairs if new in found} - found:
        found |= more
    return frozenset(found)


def _known(files: Files, started: bool) -> Equal | Bad:
    """What was adopted before; Bad when that is not known any more.

    Then nothing more is adopted: it would mean to trust the older formulas as of now. So too where
    the record is gone although this formula `started` here before under another fingerprint.
    """
    found = read_record(files, EQUAL, EQUAL)
    if isinstance(found, Bad):
        missing = found.error and not _there(files, EQUAL)
        return (Bad("it is lost") if started else {}) if missing else found
    pairs = [of.items() if isinstance(of, dict) else None for of in found.values()]
    if None in pairs or not all(isinstance(new, str) for of in pairs if of for _, new in of):
        return Bad("it is no record of adoptions")
    return found


def _adopted(files: Files, known: Equal, older: Mapping[str, Sequence[str]], present: str) -> Equal:
    """The record, with the formulas adopted that it lacks if that can be written down."""
    new = {name: dict.fromkeys(of, present) for name, of in older.items() if name not in known}
    if not new or write_record(files, EQUAL, EQUAL, known | new):
        return known
    return known | new


def _there(files: Files, name: str) -> bool:
    try:
        return files.exists(name)
    except OSError:
        return True


# what fingerprints were made of


def _name(fingerprint: str) -> str:
    return f"{INPUTS}-{fingerprint[:12]}"


def _recorded(files: Files) -> dict[str, dict[str, Any] | Bad]:
    """Every record of inputs in the directory."""
    try:
        names = [name for name in files.list() if _INPUTS_NAME.fullmatch(name)]
    except OSError:
        return {}
    return {name: read_record(files, name, INPUTS) for name in names}


def _started(record: dict[str, Any] | Bad) -> bool:
    """Whether it tells of a start under this formula; a damaged one may have."""
    return isinstance(record, Bad) or record.get("formula") == FORMULA


def _number(record: dict[str, Any] | Bad) -> int:
    """Which of the starts under another fingerprint than before it was; 0 where it doesn't say."""
    number = 0 if isinstance(record, Bad) else record.get("number", 0)
    return number if isinstance(number, int) else 0


def _record(
    files: Files, present: str, made_of: dict[str, str], before: dict[str, dict[str, Any] | Bad]
) -> None:
    """Write down what the present fingerprint is made of, and let go of the oldest such records."""
    own, newest = _name(present), max(map(_number, before.values()), default=0)
    have = before.get(own)
    meta = {"fingerprint": present, "formula": FORMULA, "inputs": made_of}
    if have is None or isinstance(have, Bad) or _number(have) < newest or have != have | meta:
        if isinstance(have, Bad) and (have.future or have.foreign or have.error):
            return
        write_record(files, own, INPUTS, meta | {"number": newest + 1})
    others = sorted(
        (name for name, record in before.items() if name != own and not _kept(record)),
        key=lambda name: _number(before[name]),
    )
    for name in others[: max(0, len(others) - KEPT + 1)]:
        try:
            files.unlink(name)
        except OSError:
            return


def _kept(record: dict[str, Any] | Bad) -> bool:
    """Not ours to delete, or not known whether it is."""
    return isinstance(record, Bad) and bool(record.future or record.foreign or record.error)


def latest(files: Files) -> dict[str, Any] | Bad:
    """The record of the fingerprint that a directory's last start had."""
    found = {name: of for name, of in _recorded(files).items() if not isinstance(of, Bad)}
    if not found:
        return Bad("there is no record of a fingerprint in it")
    return found[max(found, key=lambda name: _number(found[name]))]
