"""The box lock: held while work runs that nobody waits for, and given back when wanted"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from cache.ports import Clock
from engine.bad import BadInput

LOOK_S = 0.5
"""Between two looks for somebody who waits."""
LOCKS = Path("/proc/locks")
_WAITS = re.compile(r"^\d+: -> FLOCK .* (\d+) ([0-9a-f]+:[0-9a-f]+:\d+) ", re.M)
"""A line of somebody who waits: its process, and the file as device and inode."""
_ASK_GPU_S = 2.0


class BoxLock:
    """An flock on a path that processes of one machine agree on.

    It is never waited for. Somebody who waits in flock (2), as `flock -w` does, is seen in the
    kernel's list of locks; somebody who asks again and again without waiting is not.
    """

    def __init__(self, path: Path, clock: Clock, locks: Path = LOCKS) -> None:
        """Makes the file where there is none; raises BadInput."""
        self._clock, self._locks = clock, locks
        self._held = False
        self._looked_s: float | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadInput(str(path), None, f"cannot be locked: {error.strerror}") from None

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._held

    def try_take(self) -> bool:
        """Take it if nobody has it; whether this process has it now."""
        if not self._held:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._held, self._looked_s = True, None
        return True

    def wanted(self) -> bool:
        """Whether another process waits for it; looked at twice a second, and remembered as no."""
        now_s = self._clock.mono_s()
        if not self._held or (self._looked_s is not None and now_s - self._looked_s < LOOK_S):
            return False
        self._looked_s = now_s
        try:
            text = self._locks.read_text()
        except OSError:
            return False
        return waits(text, os.fstat(self._file))

    def release(self) -> None:
        """Give it back, if this process has it."""
        if self._held:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._held = False

    def close(self) -> None:
        """Give it back and let go of the file."""
        self.release()
        os.close(self._file)


def waits(locks: str, file: os.stat_result) -> bool:
    """Whether the kernel's list of locks has somebody who waits in flock for this file.

    File systems of their own device numbers (overlays) list another one than `stat` gives; the
    inode decides then, and a stranger's equal inode costs a summary that is written later.
    """
    inodes = {found.group(2).rpartition(":")[2] for found in _WAITS.finditer(locks)}
    return str(file.st_ino) in inodes


def gpu_is_used(run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run) -> bool:
    """Whether another program computes on a GPU; False where nvidia-smi is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    command = [tool, "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    try:
        found = run(command, capture_output=True, text=True, timeout=_ASK_GPU_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    pids = {int(line) for line in found.stdout.split() if line.isdigit()}
    return found.returncode == 0 and bool(pids - {os.getpid()})
