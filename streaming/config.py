"""The STREAMING_* settings: read once, checked, frozen. docs/configuration.md describes each.

Times are seconds, sizes are bytes. Values may be strings, as they come from the environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from .errors import SettingsError

PREFIX = "STREAMING_"
RENDER_POOLS = ("threads",)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one app; a field `max_pages` is the key STREAMING_MAX_PAGES."""

    render_pool: str = "threads"
    render_workers: int = 4
    render_wait: float = 2.0
    max_pages: int = 1_000
    backend_url: str | None = None
    template_folder: str | None = None
    backend_timeout: float = 10.0
    record_timeout: float = 60.0
    flush_timeout: float = 30.0
    max_record: int = 2_000_000
    max_precommit: int = 4_000_000
    max_page_records: int = 16_000_000
    chunk_size: int = 4_096
    drain_timeout: float = 5.0
    tokens: dict[str, Any] | None = None
    base_path: str | None = None

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Settings:
        """Read the STREAMING_* keys of a mapping such as `app.config`; other keys are not ours.

        Raises:
            SettingsError: a key is unknown, has a value of the wrong type, or contradicts another one.
        """
        types = get_type_hints(cls)
        known = {PREFIX + field.name.upper(): field.name for field in fields(cls)}
        values = {}
        for key in config:
            if not isinstance(key, str) or not key.startswith(PREFIX):
                continue
            if key not in known:
                raise SettingsError(f"{key} is not a setting; the settings are {', '.join(sorted(known))}")
            values[known[key]] = _convert(key, config[key], types[known[key]])
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise SettingsError(f"{PREFIX}{name.upper()} must be at least 1")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise SettingsError(f"{PREFIX}{name.upper()} must be more than 0 seconds")
        for name in ("record_timeout", "drain_timeout"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{PREFIX}{name.upper()} must not be negative")
        if self.render_pool not in RENDER_POOLS:
            raise SettingsError(f"STREAMING_RENDER_POOL is {self.render_pool!r}, not one of {', '.join(RENDER_POOLS)}")
        if self.max_record > self.max_page_records:
            raise SettingsError("STREAMING_MAX_RECORD is larger than STREAMING_MAX_PAGE_RECORDS, so it has no effect")
        if (self.backend_url is None) != (self.template_folder is None):
            raise SettingsError("STREAMING_BACKEND_URL and STREAMING_TEMPLATE_FOLDER go together: set both or neither")
        if self.backend_url is not None:
            check_backend_url(self.backend_url, "STREAMING_BACKEND_URL")
            if "?" in self.backend_url:
                raise SettingsError("STREAMING_BACKEND_URL must have no query: the browser's is forwarded")


_AT_LEAST_ONE = (
    "render_workers",
    "max_pages",
    "max_record",
    "max_precommit",
    "max_page_records",
    "chunk_size",
)
_POSITIVE = ("render_wait", "backend_timeout", "flush_timeout")


def check_backend_url(url: str, name: str) -> None:
    """Check the URL of a backend; SettingsError that begins with `name` if it can't be one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SettingsError(f"{name} is {url!r}; it must look like http://127.0.0.1:3001")
    if parts.username is not None or parts.fragment:
        raise SettingsError(f"{name} must have no user, password or fragment")


def _convert(key: str, value: Any, wanted: Any) -> Any:
    """Turn a value into a setting's type; strings are read as the environment gives them."""
    optional = type(None) in getattr(wanted, "__args__", ())
    if optional and (value is None or value == ""):
        return None
    if wanted is int and not isinstance(value, bool):
        return _number(key, value, int, "a whole number")
    if wanted is float and not isinstance(value, bool):
        return _number(key, value, float, "a number of seconds")
    if wanted in (str, str | None) and isinstance(value, str):
        return value
    if wanted == dict[str, Any] | None:
        return _object(key, value)
    raise SettingsError(f"{key} is {value!r}, of the wrong type")


def _number(key: str, value: Any, kind: type[int] | type[float], meaning: str) -> int | float:
    if isinstance(value, kind | str) or (kind is float and isinstance(value, int)):
        try:
            number = kind(value)
        except (ValueError, OverflowError) as error:
            raise SettingsError(f"{key} is {value!r}, not {meaning}") from error
    else:
        raise SettingsError(f"{key} is {value!r}, not {meaning}")
    if number != number or number in (float("inf"), float("-inf")):
        raise SettingsError(f"{key} is {value!r}, not {meaning}")
    return number


def _object(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise SettingsError(f"{key} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key} must be a JSON object, or a mapping")
    return dict(value)
