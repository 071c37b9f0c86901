"""Files that survive crashes, other processes and strangers: atomic writes, checksums, locks, untrusted bytes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from springwell.errors import UserError

MAX_JSON = 1 << 28
LOCK = ".lock"


def write_atomically(path: Path, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    """Replaces ``path`` by a file that is complete on disk, or leaves it as it was; a function writes its own content."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; give this one the permissions that an ordinary new file would have.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def flat_sections(description: dict[str, Any]) -> dict[str, Any]:
    """{field: value} of a description in sections, as config.json holds one, its sections dissolved."""
    out: dict[str, Any] = {}
    for name, value in description.items():
        out |= value if isinstance(value, dict) else {name: value}
    return out


def is_empty(folder: Path, record: str) -> bool:
    """Whether a folder holds nothing but a lock and what a crash left of the file that is written first; removes these."""
    found = list(folder.iterdir())
    if any(path.name != LOCK and not path.name.startswith(f".{record}.") for path in found):
        return False
    for path in found:
        path.unlink()
    return True


def file_sha256(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal digits. Raises OSError for what is no file, such as a pipe."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(folder: Path, busy: Callable[[], None], warn: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of ``folder``, which ends with the process, however that ends.

    Args:
        folder: An existing folder.
        busy: Called if another process holds the lock, before waiting for it; may raise instead.
        warn: Receives a warning if the file system has no locks.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        busy()
        lock.acquire()
    except (OSError, NotImplementedError):
        warn(f"{folder} cannot be locked; do not write to it by two commands at the same time")
    try:
        yield
    finally:
        if lock.is_locked:
            # Whoever waits for this file notices that it is gone and makes a new one.
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
            lock.release()


def open_regular(path: Path | str) -> IO[bytes]:
    """Opens a file for reading. Pipes and devices, which may never end, raise OSError at once."""
    wait_not = getattr(os, "O_NONBLOCK", 0)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is a folder" if os.path.isdir(path) else "not a regular file")
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait_not))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def read_regular(path: Path | str, most: int) -> bytes:
    """The content of a file of at most ``most`` bytes; raises OSError otherwise."""
    with open_regular(path) as file:
        # A file may grow, and some, as those of /proc, have no size.
        if os.fstat(file.fileno()).st_size > most or len(data := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB" if most >> 20 else f"larger than {most} bytes")
    return data


def parse_json(path: Path, most: int = MAX_JSON) -> Any:
    """What a JSON file of at most ``most`` bytes holds; raises OSError or ValueError."""
    try:
        return json.loads(read_regular(path, most))
    except RecursionError:
        raise ValueError("lists in lists in lists ...") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises UserError."""
    try:
        return parse_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise UserError(f"{path}: not valid JSON") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, each with its iteration, without lines that a crash cut short."""
    lines = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            values = json.loads(line)
            values["iteration"] = int(values["iteration"])
            lines.append(values)
    return lines


def shown(text: Any) -> str:
    """Text from a file for a message: short, in one line, printable."""
    if isinstance(text, bytes):
        text = text[:80].decode("latin1")
    return "".join(c if c.isprintable() else "?" for c in text[:80]) if isinstance(text, str) else "something else"
