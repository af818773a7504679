"""The settings: every default, every type, every bound, and errors that name the key."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.config import Settings, check_backend_url, normal_origin
from streaming.errors import SettingsError

BOTH = {"STREAMING_BACKEND_URL": "http://127.0.0.1:3001", "STREAMING_TEMPLATE_FOLDER": "pages"}

DEFAULTS = {
    "render_pool": "threads",
    "render_workers": 4,
    "render_wait": 2.0,
    "max_pages": 1_000,
    "backend_url": None,
    "template_folder": None,
    "backend_timeout": 10.0,
    "record_timeout": 60.0,
    "flush_timeout": 30.0,
    "max_record": 2_000_000,
    "max_precommit": 4_000_000,
    "max_page_records": 16_000_000,
    "chunk_size": 4_096,
    "drain_timeout": 5.0,
    "tokens": None,
    "base_path": None,
    "flush_interval": 0.05,
    "background_interval": 0.333,
    "log_events": 2_000,
    "log_bytes": 8 * 1024 * 1024,
    "idle_ttl": 600.0,
    "max_streams": 100_000,
    "max_connections": 10_000,
    "max_connections_per_ip": None,
    "max_subscriptions": 256,
    "max_inbound": 65_536,
    "inbound_rate": 50,
    "max_message": 16 * 1024 * 1024,
    "producer_grace": 10.0,
    "producer_timeout": 300.0,
    "origins": (),
    "ingest_token": None,
    "ping_interval": 15.0,
    "send_timeout": 30.0,
    "inspect": False,
}
PAGE_COUNTS = ["render_workers", "max_pages", "max_record", "max_precommit", "max_page_records", "chunk_size"]
LIVE_COUNTS = [
    "log_events", "log_bytes", "max_streams", "max_connections", "max_subscriptions", "max_inbound", "inbound_rate",
    "max_message",
]  # fmt: skip
OPTIONAL_COUNTS = ["max_connections_per_ip"]
COUNTS = PAGE_COUNTS + LIVE_COUNTS + OPTIONAL_COUNTS
POSITIVE_TIMES = [
    "render_wait", "backend_timeout", "flush_timeout", "background_interval", "idle_ttl", "producer_timeout",
    "ping_interval", "send_timeout",
]  # fmt: skip
TIMES_OR_ZERO = ["record_timeout", "drain_timeout", "flush_interval", "producer_grace"]
TIMES = POSITIVE_TIMES + TIMES_OR_ZERO
TEXTS = ["render_pool", "base_path", "backend_url", "template_folder", "ingest_token"]
SWITCHES = ["inspect"]

#: What keeps another setting out of a setting's way.
ROOM: dict[str, dict[str, Any]] = {
    "max_record": {"STREAMING_MAX_PAGE_RECORDS": 100_000_000},
    "flush_interval": {"STREAMING_BACKGROUND_INTERVAL": 10},
    "background_interval": {"STREAMING_FLUSH_INTERVAL": 0},
}


def key(name: str) -> str:
    return f"STREAMING_{name.upper()}"


def read(name: str, value: Any) -> Any:
    """What a setting becomes when no other is in its way."""
    return getattr(Settings.from_mapping({**ROOM.get(name, {}), key(name): value}), name)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping(config)
    return str(caught.value)


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_setting_has_its_documented_default(name: str) -> None:
    value = getattr(Settings.from_mapping({}), name)
    assert value == DEFAULTS[name]
    assert type(value) is type(DEFAULTS[name])


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_read_from_a_number_and_from_a_string(name: str) -> None:
    assert read(name, 7_000_000) == 7_000_000
    assert read(name, "8000000") == 8_000_000
    assert read(name, "8_000_000") == 8_000_000
    assert type(read(name, "8000000")) is int


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_read_from_a_number_and_from_a_string(name: str) -> None:
    for value in (1, 1.0, "1", "1.0"):
        assert read(name, value) == 1.0
        assert type(read(name, value)) is float
    assert read(name, "0.25") == 0.25


def test_texts_are_read_as_they_are() -> None:
    assert read("render_pool", "threads") == "threads"
    assert read("base_path", "/shop") == "/shop"
    assert read("ingest_token", "Abc-._~+/=,'9") == "Abc-._~+/=,'9"
    settings = Settings.from_mapping(BOTH)
    assert (settings.backend_url, settings.template_folder) == ("http://127.0.0.1:3001", "pages")


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_read_from_a_boolean_and_from_the_usual_words(name: str) -> None:
    for value in (True, "1", "true", "yes", "on", "TRUE", "Yes", "oN"):
        assert read(name, value) is True
    for value in (False, "0", "false", "no", "off", "", "FALSE", "No", "oFF"):
        assert read(name, value) is False


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [None, 1, 0, 1.0, "2", "y", "enabled", " 1", "on\n", [], {}, b"1", "\u0661"])
def test_a_switch_that_is_neither_on_nor_off_is_refused(name: str, value: Any) -> None:
    message = refusal({key(name): value})
    assert message.startswith(f"{key(name)} is ")
    assert message.endswith("not one of 1, true, yes, on, or 0, false, no, off")


def test_tokens_are_read_from_json_and_from_a_mapping() -> None:
    assert read("tokens", '{"color": "red"}') == {"color": "red"}
    assert read("tokens", {"color": "red"}) == {"color": "red"}


def test_tokens_are_copied() -> None:
    tokens = {"color": "red"}
    settings = Settings.from_mapping({"STREAMING_TOKENS": tokens})
    tokens["color"] = "blue"
    assert settings.tokens == {"color": "red"}


@pytest.mark.parametrize(
    "name", ["backend_url", "template_folder", "tokens", "base_path", "ingest_token", *OPTIONAL_COUNTS]
)
@pytest.mark.parametrize("nothing", [None, ""])
def test_an_optional_setting_can_be_left_empty(name: str, nothing: str | None) -> None:
    """The environment has no other way to say none."""
    assert read(name, nothing) is None


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [True, False, "four", "4.0", 4.0, "0x10", [4], {}, b"4", float("nan")])
def test_a_count_of_another_type_is_refused(name: str, value: Any) -> None:
    assert key(name) in refusal({key(name): value})


@pytest.mark.parametrize("name", PAGE_COUNTS + LIVE_COUNTS)
@pytest.mark.parametrize("value", [None, ""])
def test_a_count_that_is_needed_cannot_be_left_empty(name: str, value: Any) -> None:
    assert key(name) in refusal({key(name): value})


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize(
    "value",
    [True, False, None, "", "soon", "1s", [1], {}, b"1", "nan", "inf", "-inf", float("nan"), float("inf"), "1e999"],
)
def test_a_time_of_another_type_or_without_an_end_is_refused(name: str, value: Any) -> None:
    assert key(name) in refusal({key(name): value})


@pytest.mark.parametrize("name", TIMES)
def test_a_time_too_large_for_a_float_is_refused(name: str) -> None:
    assert key(name) in refusal({key(name): 10**400})


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", [1, 1.5, True, [], {}, b"threads"])
def test_a_text_of_another_type_is_refused(name: str, value: Any) -> None:
    assert key(name) in refusal({**BOTH, key(name): value})


@pytest.mark.parametrize("value", ["{", "[]", "1", "null", '"text"', [], 1, True, b"{}"])
def test_tokens_that_are_no_object_are_refused(value: Any) -> None:
    assert "STREAMING_TOKENS" in refusal({"STREAMING_TOKENS": value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, "0", "-1"])
def test_a_count_below_one_is_refused(name: str, value: Any) -> None:
    assert refusal({key(name): value}) == f"{key(name)} must be at least 1"


@pytest.mark.parametrize("name", [name for name in COUNTS if name != "max_page_records"])
def test_a_count_may_be_one(name: str) -> None:
    assert read(name, 1) == 1


@pytest.mark.parametrize("name", POSITIVE_TIMES)
@pytest.mark.parametrize("value", [0, 0.0, -0.001, "0", "-1"])
def test_a_time_that_must_pass_is_more_than_zero(name: str, value: Any) -> None:
    assert refusal({key(name): value}) == f"{key(name)} must be more than 0 seconds"
    assert read(name, 0.001) == 0.001


@pytest.mark.parametrize("name", TIMES_OR_ZERO)
@pytest.mark.parametrize("value", [-0.001, -1, "-1"])
def test_a_time_that_may_be_zero_is_not_negative(name: str, value: Any) -> None:
    assert refusal({key(name): value}) == f"{key(name)} must not be negative"
    assert read(name, 0) == 0.0


def test_the_flush_interval_is_at_most_a_second() -> None:
    assert read("flush_interval", 1) == 1.0
    assert refusal({**ROOM["flush_interval"], "STREAMING_FLUSH_INTERVAL": "1.001"}) == (
        "STREAMING_FLUSH_INTERVAL must be at most 1 second"
    )


def test_a_stream_in_the_background_is_not_flushed_more_often_than_one_in_front() -> None:
    for config in ({"STREAMING_FLUSH_INTERVAL": "0.334"}, {"STREAMING_BACKGROUND_INTERVAL": "0.049"}):
        message = refusal(config)
        assert "STREAMING_FLUSH_INTERVAL" in message
        assert "STREAMING_BACKGROUND_INTERVAL" in message
    settings = Settings.from_mapping({"STREAMING_FLUSH_INTERVAL": 0.2, "STREAMING_BACKGROUND_INTERVAL": 0.2})
    assert settings.flush_interval == settings.background_interval == 0.2


@pytest.mark.parametrize(
    "token",
    [
        "1234567",
        " 12345678",
        "12345678 ",
        "1234 5678",
        "1234\t5678",
        "12345678\n",
        "passwörter",
        "1234567\x7f",
        " " * 8,
    ],
)
def test_a_token_that_is_short_or_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    assert refusal({"STREAMING_INGEST_TOKEN": token}) == (
        "STREAMING_INGEST_TOKEN must be at least 8 characters, all of them printable ASCII and no space"
    )


def test_a_token_may_have_eight_characters() -> None:
    assert read("ingest_token", "!234567~") == "!234567~"


def test_a_token_shows_neither_in_a_refused_type_nor_in_the_settings() -> None:
    message = refusal({"STREAMING_INGEST_TOKEN": b"secret-token"})
    assert message == "STREAMING_INGEST_TOKEN is of the wrong type, bytes"
    assert "secret" not in repr(Settings.from_mapping({"STREAMING_INGEST_TOKEN": "secret-token"}))


ORIGINS = {
    "https://app.example.com": "https://app.example.com",
    "HTTPS://App.Example.COM": "https://app.example.com",
    "https://app.example.com:443": "https://app.example.com",
    "https://app.example.com:0443": "https://app.example.com",
    "https://app.example.com:80": "https://app.example.com:80",
    "http://app.example.com:80": "http://app.example.com",
    "http://app.example.com:443": "http://app.example.com:443",
    "http://localhost:5173": "http://localhost:5173",
    "http://127.0.0.1:65535": "http://127.0.0.1:65535",
    "http://[::1]": "http://[::1]",
    "http://[2001:DB8::A]:8080": "http://[2001:db8::a]:8080",
    "https://xn--bcher-kva.example": "https://xn--bcher-kva.example",
    "http://my_host.": "http://my_host.",
    "null": "null",
}


@pytest.mark.parametrize("text", ORIGINS)
def test_an_origin_has_one_form_in_which_it_is_compared(text: str) -> None:
    assert normal_origin(text) == ORIGINS[text]
    assert normal_origin(ORIGINS[text]) == ORIGINS[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "NULL",
        "app.example.com",
        "//app.example.com",
        "https:app.example.com",
        "https://",
        "https://:443",
        "https://app.example.com/",
        "https://app.example.com/path",
        "https://app.example.com?",
        "https://app.example.com#",
        "https://*.example.com",
        "https://user@app.example.com",
        "https://app.example.com:",
        "https://app.example.com:0",
        "https://app.example.com:65536",
        "https://app.example.com:+80",
        "https://app.example.com:-1",
        "https://app.example.com:port",
        "https://app.example.com:٨٠",
        " https://app.example.com",
        "https://app.example.com ",
        "https://app.example.com\n",
        "https://app.exa\nmple.com",
        "https://app.example.com, https://b.example.com",
        "https://bücher.example",
        "https://\N{KELVIN SIGN}.example",
        "http\N{LATIN SMALL LETTER LONG S}://app.example.com",
        "http://[::1",
        "http://::1",
        "http://[]",
        "http://[::1%25eth0]",
        "ftp://app.example.com",
        "file://",
    ],
)
def test_what_is_no_origin_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(ValueError, match="must look like https://") as caught:
        normal_origin(text)
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_text_is_an_origin_or_refused(text: str) -> None:
    """An Origin header is anybody's: nothing but a ValueError comes out."""
    try:
        normal = normal_origin(text)
    except ValueError:
        return
    assert normal_origin(normal) == normal


@pytest.mark.parametrize(
    ("value", "origins"),
    [
        ("", ()),
        (None, ()),
        (" , ", ()),
        ([], ()),
        ("https://a.example", ("https://a.example",)),
        (" HTTPS://A.example:443 ,http://b.example:8080,", ("https://a.example", "http://b.example:8080")),
        ("null,https://a.example", ("null", "https://a.example")),
        ("https://a.example,https://A.example:443", ("https://a.example",)),
        (["https://a.example", "http://B.example:80"], ("https://a.example", "http://b.example")),
        (("https://a.example",), ("https://a.example",)),
    ],
)
def test_origins_are_read_from_a_text_with_commas_and_from_a_list(value: Any, origins: tuple[str, ...]) -> None:
    assert read("origins", value) == origins


@pytest.mark.parametrize("value", ["*", "https://a.example https://b.example", ["https://a.example", ""], ["self"]])
def test_a_wrong_origin_among_the_settings_is_refused_with_one_that_is_right(value: Any) -> None:
    message = refusal({"STREAMING_ORIGINS": value})
    assert message.startswith("STREAMING_ORIGINS: ")
    assert "https://app.example.com" in message


@pytest.mark.parametrize("value", [1, True, b"https://a.example", {"https://a.example": 1}, [b"x"], [None], [1]])
def test_origins_of_another_type_are_refused(value: Any) -> None:
    assert refusal({"STREAMING_ORIGINS": value}).startswith("STREAMING_ORIGINS must be origins with commas")


def test_the_password_in_a_refused_origin_is_not_shown() -> None:
    assert "secret" not in refusal({"STREAMING_ORIGINS": "https://user:secret@a.example"})


def test_an_unknown_pool_is_refused_with_the_known_ones() -> None:
    message = refusal({"STREAMING_RENDER_POOL": "fibers"})
    assert "STREAMING_RENDER_POOL" in message
    assert "'fibers'" in message
    assert "threads" in message


def test_an_unknown_key_is_refused_by_name() -> None:
    message = refusal({"STREAMING_MAX_PAGE": "7"})
    assert message.startswith("STREAMING_MAX_PAGE is not a setting")
    assert "STREAMING_MAX_PAGES" in message


@pytest.mark.parametrize("other", ["streaming_max_page", "DEBUG", "MY_STREAMING_KEY", "STREAMING", 7, None])
def test_keys_of_others_are_not_ours(other: Any) -> None:
    assert Settings.from_mapping({other: object()}) == Settings()


def test_a_record_cannot_be_longer_than_all_together() -> None:
    message = refusal({"STREAMING_MAX_RECORD": 101, "STREAMING_MAX_PAGE_RECORDS": 100})
    assert "STREAMING_MAX_RECORD" in message
    assert "STREAMING_MAX_PAGE_RECORDS" in message
    settings = Settings.from_mapping({"STREAMING_MAX_RECORD": 100, "STREAMING_MAX_PAGE_RECORDS": 100})
    assert settings.max_record == 100


@pytest.mark.parametrize("missing", BOTH)
def test_backend_and_folder_go_together(missing: str) -> None:
    message = refusal({name: value for name, value in BOTH.items() if name != missing})
    assert all(name in message for name in BOTH)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:3001",
        "//host",
        "ftp://host",
        "http://",
        "http://:80",
        "http:///path",
        "http://host:0",
        "http://host:65536",
        "http://host:port",
        "http://[::1",
        "http://user@host",
        "http://user:secret@host",
        "http://host/#fragment",
        "http://host/?query=1",
        "http://host?",
    ],
)
def test_a_url_that_can_be_no_backend_is_refused(url: str) -> None:
    assert "STREAMING_BACKEND_URL" in refusal({**BOTH, "STREAMING_BACKEND_URL": url})


@pytest.mark.parametrize(
    "url", ["http://host", "https://host:8443/base/", "http://[::1]:3001", "HTTP://host", "http://host/a%20b"]
)
def test_a_url_of_a_backend_is_taken(url: str) -> None:
    assert Settings.from_mapping({**BOTH, "STREAMING_BACKEND_URL": url}).backend_url == url


def test_the_password_of_a_refused_url_is_not_shown() -> None:
    assert "secret" not in refusal({**BOTH, "STREAMING_BACKEND_URL": "http://user:secret@host"})


def test_a_backend_made_in_python_may_have_a_query() -> None:
    check_backend_url("http://host/path?x=1", "Backend")


def test_settings_are_frozen() -> None:
    settings = Settings.from_mapping({})
    for field in dataclasses.fields(Settings):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(settings, field.name, DEFAULTS[field.name])


def test_the_tables_above_know_every_setting() -> None:
    """A setting that is added must be tested too."""
    assert {field.name for field in dataclasses.fields(Settings)} == set(DEFAULTS)
    assert {*COUNTS, *TIMES, *TEXTS, *SWITCHES, "tokens", "origins"} == set(DEFAULTS)


def test_each_render_pool_that_may_be_set_exists() -> None:
    from streaming.config import RENDER_POOLS
    from streaming.state import _POOLS

    assert set(RENDER_POOLS) == set(_POOLS)
