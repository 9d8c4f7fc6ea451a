"""Several statements in one driver call.

Every call of the driver gives up the GIL, and a busy thread keeps it for milliseconds before it gives it back. A
sequence of statements that comes again is therefore made the body of a temporary trigger, with all its values as the
columns of one row: from then on one INSERT runs the whole sequence.

Within a bundle, inserts of several rows into a table are one statement, which opens the table and its indexes once:
this is half the time of the inserts one by one. Sequences with many values and those that come once are run statement
by statement.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import apsw

Statement = tuple[str, tuple[Any, ...]]
"""The text of a statement, with `?` for each of its values and nowhere else, and the values."""

StatementRuns = tuple[str, list[tuple[Any, ...]]]
"""A statement and the values of each of its runs, as `executemany` takes them."""

MAX_VALUES = 256
"""The most values of a bundle: one of that size takes 65 kB of memory, one of a thousand five times as much."""
MAX_BUNDLES = 32
MAX_SEEN = 128
_NUMBERS = itertools.count()
_PLACE = re.compile(r"\?")
_ROW = re.compile(r"VALUES (\(\?(?:, \?)*\))$")


class StatementBundles:
    """The bundles of one connection. They are temporary: no other connection sees them, and closing removes them."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._inserts: dict[tuple[str, ...], str] = {}
        self._seen: set[tuple[str, ...]] = set()
        self.wanted: tuple[str, ...] | None = None
        """The sequence to bundle, because it came again."""

    def group(self, statements: Sequence[Statement]) -> list[StatementRuns]:
        """Return the calls that run statements in their order: one, if the same sequence was bundled before."""
        sequence = tuple(map(itemgetter(0), statements))
        insert = self._inserts.get(sequence)
        if insert is not None:
            return [(insert, [tuple(itertools.chain.from_iterable(map(itemgetter(1), statements)))])]
        if (
            sequence
            and len(self._inserts) < MAX_BUNDLES
            and sum([len(values) for _, values in statements]) <= MAX_VALUES
        ):
            self.wanted = sequence if sequence in self._seen else None
            if len(self._seen) < MAX_SEEN:
                self._seen.add(sequence)
        runs = itertools.groupby(statements, itemgetter(0))
        return [(sql, [values for _, values in equal]) for sql, equal in runs]

    def prepare(self) -> None:
        """Bundle the wanted sequence. Call it outside a transaction: a rollback would remove the bundle."""
        sequence, self.wanted = self.wanted or (), None
        columns = [f"c{number}" for number in range(sum(sql.count("?") for sql in sequence))]
        name, values = f"bundle_{next(_NUMBERS)}", iter(columns)
        joined = [_join_rows(sql, len(list(equal))) for sql, equal in itertools.groupby(sequence)]
        body = [_PLACE.sub(lambda _: f"new.{next(values)}", sql) for sql in joined]
        self.connection.execute(
            f"CREATE TEMP VIEW {name} AS SELECT {', '.join(f'NULL AS {column}' for column in columns)}; "
            f"CREATE TEMP TRIGGER run_{name} INSTEAD OF INSERT ON {name} BEGIN {'; '.join(body)}; END"
        )
        self._inserts[sequence] = f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


def _join_rows(sql: str, count: int) -> str:
    """Return statements that do the same as one statement run several times: a single one, if it inserts a row."""
    row = _ROW.search(sql)
    return "; ".join([sql] * count) if row is None else ", ".join([sql, *[row[1]] * (count - 1)])
