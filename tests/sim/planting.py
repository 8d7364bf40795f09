"""Breaking one method on purpose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock


def instead(owner: Any, name: str, faulty: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Replaces a method; the faulty one gets the original first."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **kw: faulty(original, *args, **kw))
