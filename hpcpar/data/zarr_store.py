"""Zarr stores of unknown origin: only those whose codecs cannot run code are opened."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.schema import read_bytes

#: Codecs and filters that only transform numbers and texts; pickle, for example, runs code.
HARMLESS = frozenset((
    "adler32", "astype", "bitround", "blosc", "bytes", "bz2", "categorize", "crc32", "crc32c",
    "delta", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "json2", "lz4", "lzma",
    "msgpack2", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-array",
    "vlen-bytes", "vlen-utf8", "zlib", "zstd"))
#: Files with codecs, in versions 2 and 3.
_METADATA = (".zarray", ".zmetadata", "zarr.json")
#: Fields with codecs, in versions 2 and 3.
_CODECS = ("compressor", "filters", "codecs", "index_codecs", "storage_transformers")
_REMEDY = "write it again with zarr's default codecs"


def local_store(folder: str) -> Any:
    """The checked store in a folder, for xarray.

    Raises
    ------
    InputError
        It has a codec that is not in `HARMLESS`, or something else than regular files.
    ValueError
        The folder is not a store.
    """
    if not any(os.path.exists(os.path.join(folder, name)) for name in (".zgroup", "zarr.json")):
        raise ValueError("it has no .zgroup and no zarr.json")
    for entry in _files(folder):
        if entry.name in _METADATA:
            _check_codecs(entry.path)
        elif not entry.is_file():
            raise InputError(f"Zarr store {folder}: {entry.path} is not a regular file; remove it, "
                             "or fetch the store again")
    # not by its name, with which zarr would find archives and other formats
    storage: Any = importlib.import_module("zarr.storage")
    if hasattr(storage, "LocalStore"):  # zarr 3
        return storage.LocalStore(folder, read_only=True)
    return storage.DirectoryStore(folder)


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything but folders in a folder and those below; links are followed."""
    todo, visited = [folder], set[str]()
    while todo:
        place = todo.pop()
        real = os.path.realpath(place)
        if real in visited:
            continue
        visited.add(real)
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir():
                    todo.append(entry.path)
                else:
                    yield entry


def _check_codecs(path: str) -> None:
    """Checks the codecs that a file of metadata names."""
    try:
        names = set(_codecs(json.loads(read_bytes(path, "metadata", _REMEDY))))
    except (ValueError, RecursionError) as err:
        if isinstance(err, InputError):
            raise
        raise InputError(f"{path} is not JSON; fetch the Zarr store again") from err
    for name in sorted(names):
        if name.removeprefix("numcodecs.") not in HARMLESS:
            raise InputError(f"{path} names the codec '{name}', which is not among those that are "
                             f"known to run no code; {_REMEDY}")


def _codecs(node: Any) -> Iterator[str]:
    """Names of the codecs in the metadata of an array, or of all arrays that a group lists."""
    if not isinstance(node, dict):
        return
    for field in _CODECS:
        value = node.get(field)
        for codec in value if isinstance(value, list) else [value]:
            yield from _names(codec)
    for listed in node, node.get("consolidated_metadata"):
        arrays = listed.get("metadata") if isinstance(listed, dict) else None
        for key, inner in arrays.items() if isinstance(arrays, dict) else ():
            if listed is not node or not key.endswith(".zattrs"):  # attributes have any names
                yield from _codecs(inner)


def _names(codec: Any) -> Iterator[str]:
    """Names of a codec and of those inside it; None stands for no codec."""
    if isinstance(codec, dict):
        yield from (str(codec[key]) for key in ("id", "name") if key in codec)
        yield from _codecs(codec.get("configuration"))
    elif codec is not None:
        yield str(codec)
