"""Natural logarithms in the databases' own floats, where a library writes them in decimals."""

from __future__ import annotations

from typing import Any

import narwhals as nw

from counterpoise.engines.query import Frame


def with_natural_logs(frame: Frame) -> Frame:
    """The same query with LN for every logarithm, all of which are natural; ibis asks PostgreSQL for decimals, which take minutes."""
    native: Any = frame.to_native()
    if not nw.get_native_namespace(frame).__name__.startswith("ibis"):
        return frame
    import ibis.expr.operations as ops

    def natural(node: Any, changed: dict[str, Any] | None) -> Any:
        if isinstance(node, ops.Log):
            return ops.Ln(changed["arg"] if changed else node.arg)
        return node.__recreate__(changed) if changed else node

    found: Frame = nw.from_native(native.op().replace(natural).to_expr())
    return found
