"""Tables of what must be refused: one test tries all rows, and names those that were not."""

import re
from collections.abc import Callable, Iterable
from typing import Any


def unrefused(
    kind: type[Exception] | tuple[type[Exception], ...],
    call: Callable[[Any], object],
    rows: Iterable[tuple[Any, str]],
    *,
    most: int = 3000,
) -> dict[str, object]:
    """The rows that ``call`` does not refuse as they say, with what it did instead; empty if all is well."""
    wrong: dict[str, object] = {}
    for argument, pattern in rows:
        name = repr(argument)[:120]
        try:
            wrong[name] = call(argument)
        except kind as error:
            said = str(error)
            if re.search(pattern, said) is None or len(said) > most:
                wrong[name] = said[:most]
        except Exception as error:
            raise AssertionError(f"{name} raised something else") from error
    return wrong
