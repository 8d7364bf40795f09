"""Breaking one method on purpose."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

_ANNOTATIONS = __future__.annotations.compiler_flag


def instead(owner: Any, name: str, faulty: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Replaces a method; the faulty one gets the original first."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **kw: faulty(original, *args, **kw))


def with_line(owner: Any, name: str, line: str, becomes: str) -> AbstractContextManager[Any]:
    """Gives a method the code of its source with one line replaced, which must be there just once."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert source.count(line) == 1, f"{line!r} is not in {name} just once"
    scope: dict[str, Any] = {}
    exec(
        compile(source.replace(line, becomes), "planted", "exec", dont_inherit=True, flags=_ANNOTATIONS),
        _names(owner),
        scope,
    )
    return mock.patch.object(owner, name, scope[name])


def _names(owner: Any) -> dict[str, Any]:
    return vars(sys.modules[owner.__module__])
