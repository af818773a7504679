"""The STREAMING_* settings: read once, checked, frozen. docs/configuration.md describes each.

Times are seconds, sizes are bytes. Values may be strings, as they come from the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
    flush_interval: float = 0.05
    background_interval: float = 0.333
    log_events: int = 2_000
    log_bytes: int = 8_388_608
    idle_ttl: float = 600.0
    max_streams: int = 100_000
    max_connections: int = 10_000
    max_connections_per_ip: int | None = None
    max_subscriptions: int = 256
    max_inbound: int = 65_536
    inbound_rate: int = 50
    max_message: int = 16_777_216
    producer_grace: float = 10.0
    producer_timeout: float = 300.0
    origins: tuple[str, ...] = ()
    ingest_token: str | None = field(default=None, repr=False)  # a secret
    ping_interval: float = 15.0
    send_timeout: float = 30.0
    inspect: bool = False

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Settings:
        """Read the STREAMING_* keys of a mapping such as `app.config`; other keys are not ours.

        Raises:
            SettingsError: a key is unknown, has a value of the wrong type, or contradicts another one.
        """
        types = get_type_hints(cls)
        known = {PREFIX + each.name.upper(): each.name for each in fields(cls)}
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
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{PREFIX}{name.upper()} must be at least 1")
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise SettingsError(f"{PREFIX}{name.upper()} must be more than 0 seconds")
        for name in _NOT_NEGATIVE:
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
        if self.flush_interval > 1:
            raise SettingsError("STREAMING_FLUSH_INTERVAL must be at most 1 second")
        if self.background_interval < self.flush_interval:
            raise SettingsError("STREAMING_BACKGROUND_INTERVAL must not be shorter than STREAMING_FLUSH_INTERVAL")
        if self.ingest_token is not None and not _TOKEN.fullmatch(self.ingest_token):
            raise SettingsError(
                "STREAMING_INGEST_TOKEN must be at least 8 characters, all of them printable ASCII and no space"
            )


_AT_LEAST_ONE = (
    "render_workers",
    "max_pages",
    "max_record",
    "max_precommit",
    "max_page_records",
    "chunk_size",
    "log_events",
    "log_bytes",
    "max_streams",
    "max_connections",
    "max_connections_per_ip",
    "max_subscriptions",
    "max_inbound",
    "inbound_rate",
    "max_message",
)
_POSITIVE = (
    "render_wait",
    "backend_timeout",
    "flush_timeout",
    "background_interval",
    "idle_ttl",
    "producer_timeout",
    "ping_interval",
    "send_timeout",
)
_NOT_NEGATIVE = ("record_timeout", "drain_timeout", "flush_interval", "producer_grace")

#: What an Authorization header can carry behind `Bearer `, and not so short that it is guessed.
_TOKEN = re.compile(r"[!-~]{8,}")
#: How a setting is on or off.
_SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off", ""), False)
#: Stricter than urlsplit, which drops line feeds and takes spaces and any letters in a host.
_ORIGIN = re.compile(r"(https?)://([a-z0-9_][a-z0-9_.-]*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII | re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}


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


def normal_origin(text: str) -> str:
    """The form in which an origin is compared: `scheme://host[:port]`, lower case, without the scheme's default port.

    For the Origin header of a request too (RFC 6454, section 7), so `null` is an origin.

    Raises:
        ValueError: it is none. The message shows what one looks like.
    """
    if text == "null":
        return text
    found = _ORIGIN.fullmatch(text)
    if found is None or not 0 < int(found[3] or 1) < 65_536:
        shown = "a text with a user" if "@" in text else repr(text)  # there may be a password
        raise ValueError(f"{shown} is no origin; it must look like https://app.example.com or http://localhost:5173")
    scheme, host = found[1].lower(), found[2].lower()
    port = int(found[3] or _DEFAULT_PORTS[scheme])
    return f"{scheme}://{host}" if port == _DEFAULT_PORTS[scheme] else f"{scheme}://{host}:{port}"


def _convert(key: str, value: Any, wanted: Any) -> Any:
    """Turn a value into a setting's type; strings are read as the environment gives them."""
    optional = type(None) in getattr(wanted, "__args__", ())
    if optional and (value is None or value == ""):
        return None
    if wanted in (int, int | None) and not isinstance(value, bool):
        return _number(key, value, int, "a whole number")
    if wanted is float and not isinstance(value, bool):
        return _number(key, value, float, "a number of seconds")
    if wanted is bool:
        return _switch(key, value)
    if wanted in (str, str | None) and isinstance(value, str):
        return value
    if wanted == dict[str, Any] | None:
        return _object(key, value)
    if wanted == tuple[str, ...]:
        return _origins(key, value)
    # The value is not shown: it may be a secret.
    raise SettingsError(f"{key} is of the wrong type, {type(value).__name__}")


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


def _switch(key: str, value: Any) -> bool:
    found = value if isinstance(value, bool) else _SWITCHES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise SettingsError(f"{key} is {value!r}, not one of 1, true, yes, on, or 0, false, no, off")
    return found


def _object(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise SettingsError(f"{key} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key} must be a JSON object, or a mapping")
    return dict(value)


def _origins(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise SettingsError(f"{key} must be origins with commas between them, or a list of origins")
    try:
        return tuple(dict.fromkeys(map(normal_origin, value)))
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from error
