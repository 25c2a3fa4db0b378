"""Names of images, of ground truth and of held-out parts in files and folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcpar.errors import InputError

#: Names of arrays, with or without the name of a part before or after them.
IMAGES, TRUTHS = ("images", "x", "data"), ("labels", "targets", "masks", "y")
#: Names of held-out parts; the first one in a file counts.
HELD_OUT = ("val", "valid", "test")


def by_part(names: Iterable[str], where: str, remedy: str) -> dict[str, list[str]]:
    """The names of images and ground truth: of the training part (""), and of a held-out part by
    its name.

    Parameters
    ----------
    names : iterable of str
        Names of all arrays; a slash separates an array from its group.
    remedy : str
        What to do where names are unclear.

    Raises
    ------
    InputError
        They are missing or ambiguous.
    """
    all_names = list(names)
    train = _both(all_names, "") or _both(all_names, "train")
    if not train:
        raise InputError(f"{where} holds {', '.join(all_names) or 'nothing'}, without clear names "
                         f"for images and labels; {remedy}")
    for part in HELD_OUT:
        named = [name for name in all_names if part in _plain(name).split("_")]
        if named and not _both(all_names, part):
            raise InputError(f"{where} holds {', '.join(named)}: the held-out part '{part}' "
                             "needs images and labels, one array of each")
    held = next((part for part in HELD_OUT if _both(all_names, part)), None)
    return {"": train} | ({held: _both(all_names, held)} if held else {})


def part_folders(*roots: Path) -> list[str]:
    """The folders, in every root, of the training part and of a held-out part if there is one; [""]
    for the roots themselves.
    """
    has = {part for part in ("train", *HELD_OUT) if all((root / part).is_dir() for root in roots)}
    if "train" not in has:
        return [""]
    return ["train", *[part for part in HELD_OUT if part in has][:1]]


def _plain(name: str) -> str:
    return name.strip("/").replace("/", "_").lower()


def _both(names: list[str], part: str) -> list[str]:
    """Names of a part's images and ground truth; none if they are missing or ambiguous."""
    matches = []
    for kinds in IMAGES, TRUTHS:
        keys = {key.strip("_") for kind in kinds for key in (f"{part}_{kind}", f"{kind}_{part}")}
        matches.append([name for name in names if _plain(name) in keys])
    images, truths = matches
    return [*images, *truths] if len(images) == len(truths) == 1 else []
