"""Lines of JSON objects as Arrow tables: types inferred by pyarrow's reader, and one schema over many texts.

A date stays the text that it is. Integers and numbers with a point in one column are floats; a field that is missing is
null.
"""

import pyarrow as pa
import pyarrow.json as pj

from ringleader.data.uris import said


class LineUnlike(Exception):
    """A line is no JSON object, or has other types than those before it.

    Attributes:
        line: its number among those given, from 0.
        other_types: whether it is JSON, and has other types.
    """

    def __init__(self, line: int, error: Exception) -> None:
        super().__init__(said(error))
        self.line = line
        self.other_types = "Unable to merge" in str(error)


class JsonSchema:
    """The schema of all lines that it has taken in; None before the first."""

    def __init__(self) -> None:
        self.schema: pa.Schema | None = None

    def take(self, lines: bytes) -> int:
        """Take some lines in; returns the number of objects.

        Raises:
            LineUnlike: naming the first line that does not fit.
        """
        if not lines.strip():
            return 0
        count = sum(not line.isspace() for line in lines.split(b"\n") if line)
        try:
            found = self._with(_one_each(lines, count))
        except (pa.ArrowException, ValueError) as error:
            for number, line in enumerate(lines.split(b"\n")):
                self._take_line(number, line)
            raise LineUnlike(0, error) from error
        self.schema = found
        return count

    def _take_line(self, number: int, line: bytes) -> None:
        try:
            if line.strip():
                self.schema = self._with(_one_each(line, 1))
        except (pa.ArrowException, ValueError) as error:
            raise LineUnlike(number, error) from error

    def _with(self, other: pa.Schema) -> pa.Schema:
        return other if self.schema is None else merged(self.schema, other)


def parse(lines: bytes, schema: pa.Schema, *, others: str = "error") -> pa.Table:
    """The objects in some lines, with these columns.

    Args:
        others: "ignore" leaves fields out that are not in the schema; by default they are an error.

    Raises:
        pa.ArrowInvalid: no JSON, or not of this schema.
    """
    return _read(lines, pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)).select(
        schema.names
    )


def merged(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """One schema that both fit.

    Raises:
        pa.ArrowException: there is none.
    """
    return pa.unify_schemas([one, other], promote_options="permissive")


def _one_each(lines: bytes, count: int) -> pa.Schema:
    """The types of so many objects."""
    found = _inferred(lines)
    # pyarrow reads objects, not lines: two in one line, or one over two lines, would shift all rows behind them.
    if found.num_rows != count:
        raise ValueError(f"it holds {found.num_rows} objects, not {count}")
    return found.schema


def _inferred(lines: bytes) -> pa.Table:
    found = _read(lines, pj.ParseOptions())
    plain = pa.schema([field.with_type(_text_for_dates(field.type)) for field in found.schema])
    return found if plain.equals(found.schema) else parse(lines, plain)


def _read(lines: bytes, options: pj.ParseOptions) -> pa.Table:
    # One block whatever its size: else types would be inferred from a part of it.
    whole = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    found = pj.read_json(pa.BufferReader(lines), read_options=whole, parse_options=options)
    try:
        found.validate(full=True)  # the reader takes any bytes for a text
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"it is not UTF-8 ({said(error)})") from error
    return found


def _text_for_dates(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_text_for_dates(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([field.with_type(_text_for_dates(field.type)) for field in fields])
    return kind
