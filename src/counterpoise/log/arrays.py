"""Arrays given without a log, collected under the names of their parts."""

from __future__ import annotations

from typing import Any

from counterpoise.errors import OptionError


class Arrays(dict[str, Any]):
    """A mapping of arrays that grows as parts are given; every name can be added only once."""

    def put(self, name: str, value: Any) -> str:
        """Add one more array, and return the name of its column."""
        if name in self:
            raise OptionError(
                f"two of the arrays are called {name!r}: give the target (or segment, or key) another name."
            )
        self[name] = value
        return name

    def copy(self) -> Arrays:
        """Another mapping of the same arrays."""
        return Arrays(self)
