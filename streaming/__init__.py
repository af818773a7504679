"""Headrace: streaming pages for Flask. What apps import is here; docs/index.md says how to begin."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import Cancelled, MessageEnded, MessageTooLong, Refused
    from .extension import Streaming
    from .live.producer import Message, Part
    from .pages.sources import Backend
    from .protocol.commands import Resume, Start, Update

__all__ = [
    "Backend",
    "Cancelled",
    "Message",
    "MessageEnded",
    "MessageTooLong",
    "Part",
    "Refused",
    "Resume",
    "Start",
    "Streaming",
    "Update",
]

# Looked up on first use, so that `import streaming.protocol` costs no import of gevent or Flask.
_HOMES = {
    "Backend": ".pages.sources",
    "Cancelled": ".errors",
    "Message": ".live.producer",
    "MessageEnded": ".errors",
    "MessageTooLong": ".errors",
    "Part": ".live.producer",
    "Refused": ".errors",
    "Resume": ".protocol.commands",
    "Start": ".protocol.commands",
    "Streaming": ".extension",
    "Update": ".protocol.commands",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
