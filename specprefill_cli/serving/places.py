"""Where a server of this user is found: a socket in a folder that nobody else can enter. Standard library only."""

from __future__ import annotations

import os
import stat

HAS_UNIX_SOCKETS = os.name == "posix"
HTTP_SOCKET, LOCK, TOKEN = "http.sock", "lock", "token"
SWITCH = "SPECPREFILL_SERVER"


def runtime_folder() -> str:
    """The folder of this user's server: in $XDG_RUNTIME_DIR, else in the folder for temporary files, named by uid."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return os.path.join(runtime, "specprefill")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"specprefill-{os.getuid()}")


def is_private(folder: str) -> bool:
    """Whether a folder is there, no link, this user's own, and closed to everybody else."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
