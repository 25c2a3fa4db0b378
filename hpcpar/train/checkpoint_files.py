"""The newest checkpoint of a training run, and the older ones beside it (``--keep``).

Only files of this training run are deleted: those that it wrote, or the runs that it resumes. Their
content says so, and they are not links, nor files of another user.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress

from hpcpar.errors import InputError
from hpcpar.io.files import is_special, reason
from hpcpar.io.hdf5 import check
from hpcpar.options.output_files import same_file
from hpcpar.train import checkpoint
from hpcpar.train.checkpoint import CheckpointState

_REMEDY = "move it away, or choose another name for --checkpoint"


class CheckpointFiles:
    """Writes the checkpoints of one training run.

    Parameters
    ----------
    path : str
        Path of the newest one. Older ones are next to it, named ``weights.step500.h5``.
    keep : int
        Number of checkpoints to keep.
    resume : str
        Checkpoint from which this run starts; empty for none.
    start : CheckpointState
        The run at its start.
    adopts : bool
        An earlier run of the same training may be replaced, with its older checkpoints.

    Raises
    ------
    InputError
        A file with the name of an older checkpoint is damaged.
    """

    def __init__(self, path: str, keep: int, resume: str, start: CheckpointState,
                 adopts: bool = False) -> None:
        self._path, self._start = os.path.realpath(path) if os.path.islink(path) else path, start
        self._keep = 1 if is_special(path) else keep
        #: Iteration of the file at `path`; None if another run wrote it, or nobody.
        self._step = start.step if resume and same_file(resume, path) else None
        #: Older checkpoints of this training by iteration, and their files; first written first.
        self._older: dict[int, tuple[int, ...]] = {}
        steps = [step for step in (self._steps() if self._keep > 1 else ())
                 if (adopts or step <= start.step) and _is_own_file(self._name(step))]
        if steps:
            check([self._name(step) for step in steps], "file", _REMEDY, allow_external=True)
        mine = {step: _identity(self._name(step)) for step in steps if self._wrote(step)}
        self._older |= sorted(mine.items(), key=lambda item: item[1])

    def require_free(self, may_end: Callable[[int], bool], steps: int) -> None:
        """Checks that no foreign file has a name that an older checkpoint may get.

        Parameters
        ----------
        may_end : callable
            Whether a checkpoint may follow this iteration.
        steps : int
            Length of the training in iterations.

        Raises
        ------
        InputError
            The message names the first such file.
        """
        for step in self._steps() if self._keep > 1 else ():
            wanted = step == self._step or (self._start.step < step < steps and may_end(step))
            if wanted and step not in self._older:
                raise self._in_the_way(step)

    def write(self, content: memoryview, step: int) -> None:
        """Writes the checkpoint of iteration `step` atomically.

        Raises
        ------
        InputError
            The file cannot be written, or a foreign file has the name of the older one.
        """
        if self._keep > 1 and self._step is not None:
            self._set_aside(self._step)
        checkpoint.write(self._path, content)
        self._step = step
        while len(self._older) >= self._keep > 1:
            self._remove(next(iter(self._older)))

    def _set_aside(self, step: int) -> None:
        """Gives the checkpoint at `path` the name of an older one, too."""
        self._remove(step)
        try:
            os.link(self._path, self._name(step))
        except FileExistsError:
            raise self._in_the_way(step) from None
        except OSError as err:
            raise InputError(f"cannot write checkpoint {self._name(step)}: {reason(err)}; drop "
                             "--keep, or choose another folder") from err
        self._older[step] = _identity(self._name(step))

    def _remove(self, step: int) -> None:
        """Deletes an older checkpoint, unless somebody has replaced the file."""
        known = self._older.pop(step, None)
        with suppress(FileNotFoundError):
            if known == _identity(self._name(step)):
                os.unlink(self._name(step))

    def _in_the_way(self, step: int) -> InputError:
        return InputError(f"{self._name(step)} exists, and this training run did not write it: it "
                          f"is not replaced; {_REMEDY}")

    def _name(self, step: int | str) -> str:
        """Path of an older checkpoint."""
        stem, suffix = os.path.splitext(self._path)
        return f"{stem}.step{step}{suffix}"

    def _steps(self) -> list[int]:
        """Iterations in the names of files next to `path`."""
        name = re.escape(os.path.basename(self._name("@"))).replace("@", "(0|[1-9][0-9]*)")
        found = map(re.compile(name).fullmatch, os.listdir(os.path.dirname(self._path) or "."))
        return sorted(int(match[1]) for match in found if match)

    def _wrote(self, step: int) -> bool:
        """Whether the file with the name of an older checkpoint is one of this training."""
        try:
            state = checkpoint.read_state(self._name(step))
        except InputError:
            return False
        return (state.training, state.step) == (self._start.training, step)


def _is_own_file(path: str) -> bool:
    """Whether a path is a file of this user, and no link."""
    about = os.lstat(path)
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()


def _identity(path: str) -> tuple[int, ...]:
    """Numbers that change when another file, or other content, gets this name; the first is the
    time of its last change (ns).
    """
    about = os.lstat(path)
    return about.st_mtime_ns, about.st_size, about.st_ino, about.st_dev
