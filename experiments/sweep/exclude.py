"""Expressions that leave cells out: `kv.allocator != "paged" and kv.block_size > 16`.

Read and evaluated here, never run as Python: names are configuration keys; there are no calls and no indices.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from experiments.exits import UsageError

_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_WORDS: Final = {"null": None, "true": True, "false": False}
LONGEST: Final = 1000
"""Characters of an expression."""


@lru_cache(maxsize=256)
def parse_exclude(text: str) -> ast.expr:
    """The expression's tree; UsageError for what is no expression over keys."""
    if len(text) > LONGEST:
        raise UsageError(f"exclude: an expression of {len(text)} characters; at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"exclude {text!r}: not an expression: {error}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise UsageError(
                f"exclude {text!r}: {type(node).__name__} is not understood; there are keys, numbers, texts in quotes, "
                "null, lists, + - * / // %, comparisons, in, and, or, not"
            )
    return tree


_ALLOWED: Final = (
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Compare,
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.boolop,
    ast.Not,
    ast.USub,
    ast.cmpop,
    ast.expr_context,
    *_ARITHMETIC,
)


def excluded(text: str, values: Mapping[str, Any]) -> bool:
    """Whether the expression is true of a cell's keys; UsageError for an unknown key, or types that do not compare."""
    try:
        return bool(_value(parse_exclude(text), values))
    except UsageError as error:
        raise UsageError(f"exclude {text!r}: {error}") from None
    except (TypeError, ArithmeticError) as error:
        told = ", ".join(f"{key}={value!r}" for key, value in values.items() if key in text)
        raise UsageError(f"exclude {text!r}: {error}, where {told}; `KEY is null` tells what is unset") from None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return _of_key(_dotted(node), values)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return [_value(item, values) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, values)
        case ast.UnaryOp(operand=inner):
            return -_number(inner, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(left, values), _number(right, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(left, values), *(_value(other, values) for other in others)]
            return all(_COMPARE[type(op)](sides[i], sides[i + 1]) for i, op in enumerate(ops))
    raise UsageError(f"{type(node).__name__} is not understood")


def _number(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Of arithmetic: a text times a billion would be a gigabyte."""
    value = _value(node, values)
    if not isinstance(value, int | float):
        raise TypeError(f"arithmetic needs numbers, got {value!r}")
    return value


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise UsageError("a key is words with dots between them, such as kv.block_size")


def _of_key(key: str, values: Mapping[str, Any]) -> Any:
    if key in values:
        return values[key]
    if key in _WORDS:
        return _WORDS[key]
    from experiments.config import leaf_keys, suggestion

    known = leaf_keys()
    if key in known and known[key] in values:
        return values[known[key]]
    if key in known or key in known.values():
        return None
    raise UsageError(f"{key}: unknown key; {suggestion(key)}")
