"""Rows of numbers written as columns: each name once instead of once per row, and a value that all rows share once."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = TypeVar("Row", bound=msgspec.Struct)


class Columns(Generic[Row]):
    """How rows of one type are written.

    `[Values(index=3, tokens=8), Values(index=4, tokens=8)]` becomes `{"index": [3, 4], "tokens": 8}`. A field that has its
    default value in all rows is left out.

    Args:
        row: A struct with a field `index` and no list fields.
    """

    def __init__(self, row: type[Row]) -> None:
        self._row = row
        fields = msgspec.structs.fields(row)
        self._defaults = {field.name: field.default for field in fields}
        one_or_all = [(field.name, _one_or_all(field), field.default) for field in fields]
        self.type: Any = msgspec.defstruct(
            f"{row.__name__}Columns",
            [
                (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)
                for name, kind, default in one_or_all
            ],
            kw_only=True,
            gc=False,
        )
        """The type that columns are decoded as."""

    def of(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The columns of these rows, ready to encode."""
        columns: dict[str, Any] = {}
        for (name, default), column in zip(
            self._defaults.items(), zip(*map(msgspec.structs.astuple, rows), strict=True), strict=True
        ):
            shared = name != "index" and column.count(column[0]) == len(column)
            if not shared:
                columns[name] = column
            elif column[0] != default:
                columns[name] = column[0]
        return columns

    def rows(self, columns: Any) -> tuple[Row, ...]:
        """The rows of decoded columns.

        Args:
            columns: An object of `type`.

        Raises:
            ValueError: The columns have different lengths.
        """
        size = len(columns.index)
        each: list[Iterable[Any]] = []
        for column in msgspec.structs.astuple(columns):
            if not isinstance(column, list):
                each.append(repeat(column, size))
            elif len(column) == size:
                each.append(column)
            else:
                raise ValueError("columns of different lengths")
        return tuple(map(self._row, *each))


def _one_or_all(field: msgspec.structs.FieldInfo) -> Any:
    """The type of a column: the value that all rows share, or a list. Rows never share an index."""
    kind: Any = field.type
    return list[int] if field.name == "index" else kind | list[kind]
