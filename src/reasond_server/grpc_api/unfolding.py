"""Counts the fields in the bytes of a request before a message is built from them.

A message of 4 MiB may hold two million empty fields, and each becomes an object of many times its encoded size.
Source: the encoding of protocol buffers (protobuf.dev, "Encoding").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.errors.request import InvalidRequestError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

MAX_FIELDS: Final = 50_000
"""More than any request needs: the 10,000 values that a configuration may hold have some four fields each."""

# A shorter message cannot hold so many fields: a field takes at least two bytes.
_NEVER_TOO_MANY_BYTES: Final = 2 * MAX_FIELDS
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZES: Final = {_FIXED_64: 8, _FIXED_32: 4}
_CONTINUES: Final = 0x80
_SEVEN_BITS: Final = 0x7F
_LONGEST_VARINT: Final = 64


def may_unfold(raw: bytes) -> bool:
    """Return whether `raw` is long enough to hold more than MAX_FIELDS fields."""
    return len(raw) > _NEVER_TOO_MANY_BYTES


def require_few_fields(raw: bytes, kind: Descriptor | None) -> None:
    """Reject the bytes of a message of `kind` with more than MAX_FIELDS fields, including nested ones.

    Bytes that are not a message of that kind pass: the parser rejects them later. For an unknown kind (None), only
    the outermost fields are counted.

    Raises:
        InvalidRequestError: there are more fields.
    """
    try:
        count = _count(raw, kind)
    except (IndexError, ValueError):
        return
    if count > MAX_FIELDS:
        raise InvalidRequestError(
            f"Request validation failed: the {len(raw)} bytes of the request hold more than {MAX_FIELDS} fields",
            remedy="Send fewer values, such as list items, members of objects or capabilities.",
        )


def _count(raw: bytes, kind: Descriptor | None) -> int:
    """Return the number of fields; counting stops soon after MAX_FIELDS."""
    count = 0
    # Not recursive: the sender chooses the depth of nesting.
    waiting: list[tuple[int, int, Descriptor | None]] = [(0, len(raw), kind)]
    while waiting and count <= MAX_FIELDS:
        place, end, message = waiting.pop()
        while place < end and count <= MAX_FIELDS:
            count += 1
            tag, place = _varint(raw, place)
            wire = tag & 7
            if wire == _BYTES:
                size, place = _varint(raw, place)
                field = message.fields_by_number.get(tag >> 3) if message is not None else None
                if field is not None and field.message_type is not None:
                    waiting.append((place, min(place + size, end), field.message_type))
                elif field is not None and field.type not in {field.TYPE_STRING, field.TYPE_BYTES}:
                    # Packed numbers: each byte may be a number.
                    count += min(size, end - place)
                place += size
            elif wire == _VARINT:
                _, place = _varint(raw, place)
            else:
                # The start and the end of a group each count as a field: both have a tag.
                place += _FIXED_SIZES.get(wire, 0)
    return count


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    """Return the number at `place` and the place after it.

    Raises:
        IndexError: the bytes end within the number.
        ValueError: the number has too many bytes.
    """
    byte = raw[place]
    if byte < _CONTINUES:
        return byte, place + 1
    number, shift = byte & _SEVEN_BITS, 7
    while byte >= _CONTINUES:
        place += 1
        byte = raw[place]
        number |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if shift > _LONGEST_VARINT + 6:
            raise ValueError(shift)
    return number, place + 1
