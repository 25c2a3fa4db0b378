"""Chakra execution traces (MLCommons): length-prefixed protobuf messages, with the fields that
ASTRA-sim reads from compute steps and messages.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from hpcpar.errors import InputError
from hpcpar.simulation.programs import Computation, ProgramPart

#: Messages of the schema (et_def.proto, package ChakraProtoMsg): number and type of their fields.
_SCHEMA = {
    "AttributeProto": {"name": (1, "STRING"), "int32_val": (7, "INT32"), "int64_val": (9, "INT64"),
                       "uint64_val": (13, "UINT64"), "bool_val": (27, "BOOL")},
    "GlobalMetadata": {"version": (1, "STRING")},
    "Node": {"id": (1, "UINT64"), "name": (2, "STRING"), "type": (3, "INT32"),
             "data_deps": (5, "UINT64"), "duration_micros": (7, "UINT64"), "attr": (10, "MESSAGE")},
}
_REPEATED = ("data_deps", "attr")
#: The schema's node types in use: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE.
_COMPUTES, _SENDS, _RECEIVES = 4, 5, 6


def encoded(rank: int, program: Iterable[ProgramPart]) -> Iterator[bytes]:
    """The trace of a rank, message by message."""
    metadata, node = message_classes()
    yield _delimited(metadata(version="0.0.4"))
    done_s = 0.0
    for part in program:
        made = node(id=part.number, name=part.label, data_deps=part.after)
        made.attr.add(name="is_cpu_op", bool_val=False)
        if isinstance(part, Computation):
            # whole microseconds, rounded so that their sum is exact
            begin_s, done_s = done_s, done_s + part.seconds
            made.duration_micros = round(1e6 * done_s) - round(1e6 * begin_s)
            made.type = _COMPUTES
            made.attr.add(name="num_ops", int64_val=round(part.flops))
            made.attr.add(name="tensor_size", uint64_val=round(part.n_bytes))
        else:
            made.type = _SENDS if part.sends else _RECEIVES
            source, target = (rank, part.peer) if part.sends else (part.peer, rank)
            made.attr.add(name="comm_size", int64_val=part.n_bytes)
            for key, value in ("src", source), ("dst", target), ("tag", part.tag):
                made.attr.add(name=f"comm_{key}", int32_val=value)
        yield _delimited(made)


def _delimited(message: Any) -> bytes:
    """A message, preceded by its length as a varint."""
    content: bytes = message.SerializeToString()
    size, head = len(content), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + content


def message_classes() -> tuple[Any, Any]:
    """The classes of GlobalMetadata and Node.

    Raises
    ------
    InputError
        The package protobuf is missing.
    """
    try:
        types = importlib.import_module("google.protobuf.descriptor_pb2")
        pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
        class_of = importlib.import_module("google.protobuf.message_factory").GetMessageClass
    except (ImportError, AttributeError) as err:
        raise InputError("Chakra traces need the package protobuf, 4.22 or newer: pip install "
                         "hpcpar[onnx]") from err
    file = types.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    field = types.FieldDescriptorProto
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in fields.items():
            label = field.LABEL_REPEATED if key in _REPEATED else field.LABEL_OPTIONAL
            made = message.field.add(name=key, number=number, label=label,
                                     type=field.Type.Value(f"TYPE_{kind}"))
            if kind == "MESSAGE":
                made.type_name = ".ChakraProtoMsg.AttributeProto"
            if key.endswith("_val"):  # the fields of the oneof; a value may be 0
                made.oneof_index = 0
    file.message_type[0].oneof_decl.add(name="value")
    pool.Add(file)
    metadata, node = (class_of(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
                      for name in ("GlobalMetadata", "Node"))
    return metadata, node
