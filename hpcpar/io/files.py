"""Files that are written whole or not at all, and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from hpcpar.errors import InputError, unknown


def reason(err: Exception) -> str:
    """The cause of an error on one line; HDF5 buries it in a long message."""
    message = re.search(r"error message = '([^']*)'", str(err))
    if message:
        return message[1]
    return getattr(err, "strerror", None) or (str(err) or type(err).__name__).splitlines()[0]


def _beside(path: str, kind: str) -> str:
    """Path of a hidden helper file in the folder of `path`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.hpcpar-{kind}")


def require_own(*paths: str) -> None:
    """Refuses symbolic links at names that hpcpar chooses: writing would change their targets."""
    for path in paths:
        if os.path.islink(path):
            raise InputError(f"{path} is a symbolic link, and hpcpar does not follow links at its "
                             "own file names; remove it, or choose another folder")


def require_no_links(folder: str) -> None:
    """Refuses symbolic links anywhere in a folder whose files hpcpar names."""
    for place, folders, names in os.walk(folder):
        require_own(*(os.path.join(place, name) for name in (*folders, *names)))


def make_folder(path: str) -> None:
    """Makes a folder unless it exists.

    Raises
    ------
    InputError
        The folder cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as err:
        raise InputError(
            f"cannot make folder {path}: {err.strerror}; choose another place with --out") from err


def looks_like_file(text: str) -> bool:
    """True for text with a separator or a suffix, unlike a preset's name."""
    return os.sep in text or re.search(r"\.[A-Za-z]\w*$", text) is not None


def unknown_name(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name where a file could be given as well."""
    here = {name.lower(): f"for the file of this name, write ./{name}"}
    return unknown(what, name, known, here if os.path.exists(name) else None)


def is_special(path: str) -> bool:
    """True for devices, pipes, sockets, terminals and folders."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def require_regular(path: str) -> None:
    """Refuses pipes, devices and sockets in place of a file: reading may never end.

    Raises
    ------
    OSError
        The path leads to one of them.
    """
    if is_special(path) and not os.path.isdir(path):
        raise OSError(errno.EINVAL, "it is not a regular file")


def remove_temporaries(path: str) -> None:
    """Removes temporary files of writers of `path` that were killed on this host."""
    start = re.escape(f"{os.path.basename(_beside(path, 'tmp'))}-{socket.gethostname()}-")
    folder = os.path.dirname(path) or "."
    for name in os.listdir(folder):
        found = re.fullmatch(rf"{start}([0-9]+)-[0-9a-f]{{16}}", name)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


@contextmanager
def atomic_path(path: str, what: str) -> Iterator[str]:
    """The path of a new file in the same folder, for the caller to write.

    On success it replaces `path` and takes its permissions; on failure it is removed. A symbolic
    link stays and its target is replaced. Devices and pipes are written directly.

    Raises
    ------
    InputError
        The file cannot be written, or nobody reads the pipe; `what` names the file's kind.
    """
    try:
        if is_special(path):
            with _open_pipe(path):
                yield path
            return
        target = os.path.realpath(path)
        remove_temporaries(target)
        temporary = temporary_of(target)
        # O_EXCL does not follow a link that somebody planted here
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield temporary
            _replace(temporary, target)
        finally:
            with suppress(OSError):
                os.unlink(temporary)
    except OSError as err:
        raise InputError(f"cannot write {what} {path}: {reason(err)}; choose an existing, writable "
                         "folder with free space") from err


@contextmanager
def atomic_folder(path: str, names: str) -> Iterator[str]:
    """A new folder beside `path`, for the caller to fill; it replaces `path` on success.

    Parameters
    ----------
    names : str
        Regular expression of the file names that may be replaced with `path`.

    Raises
    ------
    InputError
        The folder cannot be written, or `path` has other files.
    """
    try:
        target = os.path.realpath(path)
        present = os.listdir(target) if os.path.exists(target) else []
        foreign = [name for name in present if not re.fullmatch(names, name)
                   or not stat.S_ISREG(os.lstat(os.path.join(target, name)).st_mode)]
        if foreign:
            raise InputError(f"folder {path} has other files, too ({foreign[0]}); choose another")
        temporary = temporary_of(target)
        os.mkdir(temporary)
        try:
            yield temporary
            if os.path.exists(target):
                os.rename(target, f"{temporary}-old")
            os.rename(temporary, target)
        finally:
            shutil.rmtree(f"{temporary}-old", ignore_errors=True)
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as err:
        raise InputError(f"cannot write folder {path}: {reason(err)}; choose an existing, writable "
                         "parent folder with free space") from err


@contextmanager
def _open_pipe(path: str) -> Iterator[None]:
    """Keeps a pipe open for writing; opening one that nobody reads would wait for ever."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        yield
        return
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as err:
        if err.errno != errno.ENXIO:
            raise
        raise OSError(err.errno, "it is a pipe that nobody reads") from err
    try:
        yield
    finally:
        os.close(number)


def temporary_of(target: str) -> str:
    """An unpredictable path beside `target` for a temporary file or folder of this process."""
    return (f"{_beside(target, 'tmp')}-{socket.gethostname()}-{os.getpid()}-"
            f"{secrets.token_hex(8)}")


def _replace(temporary: str, target: str) -> None:
    """Replaces a file; after a system crash, either the old or the new one is there."""
    with suppress(FileNotFoundError):
        os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
    _sync(temporary)
    os.replace(temporary, target)
    _sync(os.path.dirname(target) or ".")


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_bytes(path: str, content: bytes | memoryview, what: str) -> None:
    """Writes a file atomically; raises the errors of `atomic_path`."""
    with atomic_path(path, what) as temporary, open(temporary, "wb") as f:
        f.write(content)


def write_text(path: str, text: str, what: str) -> None:
    """Writes a text file atomically; raises the errors of `atomic_path`."""
    write_bytes(path, text.encode(), what)


@contextmanager
def lock(path: str, what: str) -> Iterator[None]:
    """Keeps other processes from writing `path`, by a lock file beside it.

    The lock ends with its process, even a killed one. File systems without locks ignore it.

    Raises
    ------
    InputError
        Another process has the lock, or the folder cannot be written.
    """
    if is_special(path):
        yield
        return
    target = os.path.realpath(path)
    require_own(_beside(target, "lock"))
    try:
        holder = _locked(_beside(target, "lock"))
        remove_temporaries(target)
    except BlockingIOError as err:
        raise InputError(f"{what} {path} is being written by another job ({err}); wait for it, or "
                         "choose another name") from err
    except OSError as err:
        raise InputError(f"cannot write {what} {path}: {reason(err)}; choose an existing, writable "
                         "folder") from err
    with holder:
        try:
            yield
        finally:
            remove_temporaries(target)  # of a parent process that has died
            os.unlink(_beside(target, "lock"))


def _locked(name: str) -> BinaryIO:
    """The lock file, locked and with its owner's name inside."""
    while True:
        number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        f = open(number, "ab+", buffering=0)  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            f.seek(0)
            raise BlockingIOError(f.read(200).decode(errors="replace")) from None
        except OSError:
            return f
        # the previous owner may have removed the file since this process opened it
        if os.path.lexists(name) and os.path.samestat(os.lstat(name), os.fstat(number)):
            f.truncate(0)
            with suppress(OSError):  # a full disk: the lock holds without the name
                f.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            return f
        f.close()
