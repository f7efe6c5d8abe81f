"""A place on a real drive for a check: a folder of its own there, and room for what it takes"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cache.host import OsFiles, sigterm_unwinds
from engine.bad import BadInput

_MEMINFO = Path("/proc/meminfo")
_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def refuse_small(directory: Path, drive_bytes: int, memory_bytes: int) -> None:
    """Raise BadInput for a directory, a drive or a memory that won't do."""
    place, files = str(directory), OsFiles(directory, readonly=True)
    if why := files.unfit():
        raise BadInput(place, None, why)
    free = files.free_bytes()
    if free < drive_bytes:
        raise BadInput(place, None, f"{drive_bytes:,} bytes are needed, {free:,} are free")
    memory = free_memory_bytes()
    if memory is not None and memory < memory_bytes:
        what = f"{memory_bytes:,} bytes of memory are needed, {memory:,} are free"
        raise BadInput("--gib", None, what)


def free_memory_bytes() -> int | None:
    """Memory that this process may still take; None where nobody says."""
    free: list[int] = []
    with suppress(OSError, ValueError):
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free.append(int(fields["MemAvailable"].removesuffix("kB")) * 1_024)
    with suppress(OSError, ValueError):
        group = _CGROUPS / _CGROUP.read_text().splitlines()[-1].split(":", 2)[2].lstrip("/")
        limit, held = (group / f"memory.{name}" for name in ("max", "current"))
        # "max" is no number: there is no limit.
        free.append(int(limit.read_text()) - int(held.read_text()))
    return min(free, default=None)


@contextmanager
def own_folder(directory: Path) -> Iterator[Path]:
    """A folder below, gone afterwards, also after SIGTERM; raises BadInput."""
    with sigterm_unwinds():
        try:
            folder = TemporaryDirectory(prefix="moorage-check-", dir=directory)
        except OSError as error:
            raise BadInput(str(directory), None, f"cannot be used: {error.strerror}") from None
        with folder as name:
            try:
                yield Path(name)
            except OSError as error:
                why = error.strerror or str(error)
                raise BadInput(str(directory), None, f"cannot be used: {why}") from None
