"""Who may (docs/live-protocol.md, "Who may"): origins, the app's authorizer, its handlers for what clients publish; and
that nothing from outside gets into a header, an SSE field or a log line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import gevent
import pytest
from flask import current_app, request, session, url_for
from gevent.event import Event
from werkzeug.middleware.proxy_fix import ProxyFix

from tests.folding import Fold
from tests.live import TEXT, UPGRADE, Answer, LiveSite, WebSocket, masked
from tests.parts import LIMIT, until

WS = dict(line.split(": ") for line in UPGRADE.strip().split("\r\n"))
OWN = "http://localhost"
ALLOWED = "https://app.example.com"
EVIL = "https://evil.example"
#: All that can be asked for about a stream, and what it needs.
ROUTES = [
    ("GET", "/streams/chat", "read"),
    ("GET", "/streams/chat/events", "read"),
    ("HEAD", "/streams/chat/events", "read"),
    ("GET", "/streams/chat/events?until=idle", "read"),
    ("GET", "/streams/chat/records", "read"),
    ("GET", "/streams/activity?sid=chat", "read"),
    ("POST", "/streams/chat/records", "ingest"),
    ("POST", "/streams/chat/cancel", "cancel"),
]
FRAMES = [
    ({"t": "subscribe", "sid": "chat"}, "read"),
    ({"t": "subscribe", "sid": "chat", "mode": "activity"}, "read"),
    ({"t": "cancel", "sid": "chat"}, "cancel"),
    ({"t": "publish", "sid": "chat", "k": "say", "d": 1, "id": 7}, "publish"),
]


def ask(site: LiveSite, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Answer:
    """Ask for a response; wait for its head only."""
    return site.ask(
        path, method, {"Content-Type": "application/x-ndjson", **(headers or {})} if method == "POST" else headers
    )


def allow(site: LiveSite, answer: Any = True) -> list[tuple[str, str]]:
    """An authorizer that always says the same; what it was asked."""
    asked: list[tuple[str, str]] = []

    @site.streaming.authorizer
    def authorizer(action: str, sid: str) -> Any:
        asked.append((action, sid))
        return answer

    return asked


def refused(response: Answer, status: int, code: str) -> None:
    """The response is a refusal in JSON, and says nothing that it should not."""
    response.read()
    assert response.status == status
    if response.body:
        assert response.json["error"] == code
        assert response.headers["content-type"] == "application/json"


# -- origins


OTHERS = [
    EVIL, "https://localhost", "http://localhost:8000", "http://localhost.evil.example", "http://evil.example/localhost",
    "null", "localhost", "http://", "http://localhost@evil.example", "http://localhost/", "http://a b", "", "*",
    "http://localhost, http://localhost", "http://localhost:x", "http://xn--lcalhost-", "file://",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/streams/ws", "/streams/chat", "/streams/chat/events", "/streams/activity?sid=chat"])
def test_another_origin_is_403_before_any_upgrade_and_creates_nothing(live_site: LiveSite, path: str) -> None:
    headers = WS if path.endswith("ws") else {}
    for origin in OTHERS:
        response = ask(live_site, path, headers={**headers, "Origin": origin})
        assert response.status == 403, origin
        refused(response, 403, "forbidden")
        assert "access-control-allow-origin" not in response.headers
    assert live_site.hub.channels == {}
    assert live_site.hub.connections == {}


@pytest.mark.parametrize("origin", [None, OWN, "HTTP://LOCALHOST", "http://localhost:80"])
def test_no_origin_and_the_requests_own_are_allowed(live_site: LiveSite, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    assert ask(live_site, "/streams/ws", headers={**WS, **headers}).status == 101
    response = ask(live_site, "/streams/chat/events", headers=headers)
    assert response.status == 200
    assert "access-control-allow-origin" not in response.headers  # it needs none
    assert ask(live_site, "/streams/chat/cancel", "POST", headers).read().status == 202


def test_the_requests_own_origin_needs_no_cors_headers_though_it_is_listed(live_site: LiveSite) -> None:
    live_site.configure(origins=[OWN, ALLOWED])
    response = ask(live_site, "/streams/chat/events", headers={"Origin": OWN})
    assert response.status == 200
    assert "access-control-allow-origin" not in response.headers


def test_behind_a_proxy_the_origin_is_compared_with_what_the_client_sees(live_site: LiveSite) -> None:
    seen = {"Origin": ALLOWED, "X-Forwarded-Proto": "https", "X-Forwarded-Host": "app.example.com"}
    assert ask(live_site, "/streams/ws", headers={**WS, **seen}).status == 403
    live_site.app.wsgi_app = ProxyFix(live_site.app.wsgi_app, x_proto=1, x_host=1)  # type: ignore[method-assign]
    assert ask(live_site, "/streams/ws", headers={**WS, **seen}).status == 101
    assert ask(live_site, "/streams/chat/events", headers=seen).status == 200
    assert ask(live_site, "/streams/ws", headers={**WS, **seen, "Origin": OWN}).status == 403
    assert ask(live_site, "/streams/ws", headers={**WS, **seen, "X-Forwarded-Proto": "http"}).status == 403


@pytest.mark.parametrize(
    "path", ["/streams/chat/events", "/streams/chat/records", "/streams/activity?sid=a", "/streams/none"]
)
def test_pages_of_an_allowed_origin_may_read_the_answers(live_site: LiveSite, path: str) -> None:
    for way in ("socket", "iterable"):
        live_site.configure(way, origins=[ALLOWED, "http://other.example:8080"])
        response = ask(live_site, path, headers={"Origin": ALLOWED})
        assert response.status in (200, 404)
        assert response.headers["access-control-allow-origin"] == ALLOWED
        assert response.headers["access-control-allow-credentials"] == "true"
        assert "origin" in response.headers["vary"].lower()
        refused(ask(live_site, path, headers={"Origin": EVIL}), 403, "forbidden")
        live_site.leave()


def test_an_allowed_origin_may_use_websocket_and_post_with_its_preflight(live_site: LiveSite) -> None:
    live_site.configure(origins=ALLOWED)
    assert ask(live_site, "/streams/ws", headers={**WS, "Origin": ALLOWED}).status == 101
    live_site.stream("chat").publish("note")
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = ask(live_site, "/streams/chat/cancel", "OPTIONS", {"Origin": ALLOWED, **asks}).read()
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == ALLOWED
    assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
    assert "last-event-id" in preflight.headers["access-control-allow-headers"].lower()
    posted = live_site.post("/streams/chat/cancel", {}, {"Origin": ALLOWED, "Sec-Fetch-Site": "cross-site"})
    assert posted.status == 202
    assert posted.headers["access-control-allow-origin"] == ALLOWED
    refused(ask(live_site, "/streams/chat/cancel", "OPTIONS", {"Origin": EVIL, **asks}), 403, "forbidden")


@pytest.mark.parametrize("path", ["/streams/chat/cancel", "/streams/chat/records"])
def test_a_cross_site_post_of_a_browser_is_refused(live_site: LiveSite, path: str) -> None:
    live_site.configure(ingest_token="a long secret".replace(" ", "-"))
    token = {"Authorization": "Bearer a-long-secret"}
    message = live_site.message("chat")
    for headers in (
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        refused(ask(live_site, path, "POST", {**token, **headers}), 403, "forbidden")
    assert message.status is None
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": OWN}, {}):
        assert ask(live_site, path, "POST", {**token, **headers}).read().status in (200, 202)


def test_a_get_of_a_link_on_another_site_is_allowed(live_site: LiveSite) -> None:
    response = ask(live_site, "/streams/chat/events", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status == 200


# -- the authorizer


@pytest.mark.parametrize(("method", "path", "action"), ROUTES)
def test_each_route_asks_before_anything_is_created_or_revealed(
    live_site: LiveSite, method: str, path: str, action: str
) -> None:
    asked = allow(live_site, False)
    refused(ask(live_site, path, method), 403, "forbidden")
    assert asked == [(action, "chat")]
    assert live_site.hub.channels == {}
    message = live_site.message("chat")
    unknown = ask(live_site, path, method).read()
    assert unknown.status == 403  # the same for a stream that exists
    assert message.status is None
    assert live_site.hub.connections == {}


@pytest.mark.parametrize(("method", "path", "action"), ROUTES)
def test_each_route_serves_those_who_may(live_site: LiveSite, method: str, path: str, action: str) -> None:
    asked = allow(live_site)
    live_site.stream("chat").publish("note")
    assert ask(live_site, path, method).status in (200, 202)
    assert asked == [(action, "chat")]


def test_activity_asks_for_each_stream_and_one_no_is_a_no(live_site: LiveSite) -> None:
    asked = []
    live_site.streaming.authorizer(lambda action, sid: asked.append(sid) or sid != "b")
    refused(ask(live_site, "/streams/activity?sid=a&sid=b&sid=c"), 403, "forbidden")
    assert asked == ["a", "b"]
    assert live_site.hub.channels == {}
    assert ask(live_site, "/streams/activity?sid=a&sid=c").status == 200


@pytest.mark.parametrize(("frame", "action"), FRAMES)
def test_each_frame_asks_before_anything_is_created_or_revealed(
    live_site: LiveSite, frame: dict[str, Any], action: str
) -> None:
    called: list[Any] = []
    live_site.streaming.on_publish("say")(lambda sid, data: called.append(data))
    asked = allow(live_site, False)
    websocket = live_site.websocket()
    assert asked == []
    websocket.say(frame)
    error = websocket.answer("error")
    assert error.items() >= {"code": "forbidden", "sid": "chat"}.items()
    assert asked == [(action, "chat")]
    assert live_site.hub.channels == {}
    message = live_site.message("chat")
    websocket.say(frame)
    assert websocket.answer("error") == error  # the same for a stream that exists
    assert message.status is None
    assert called == []
    assert websocket.named("subscribed") == websocket.named("ack") == []


def test_a_bad_frame_or_sid_is_not_asked_about(live_site: LiveSite) -> None:
    asked = allow(live_site)
    websocket = live_site.websocket()
    websocket.say({"t": "subscribe", "sid": "a b"}, {"t": "publish", "sid": "chat", "k": "X", "d": 1})
    websocket.settle()
    ask(live_site, "/streams/a%20b/events").read()
    assert asked == []


def cookie(site: LiveSite, **values: Any) -> str:
    """A signed session cookie."""
    serializer = site.app.session_interface.get_signing_serializer(site.app)  # type: ignore[attr-defined]
    return f"session={serializer.dumps(values)}"


def test_the_authorizer_sees_the_request_also_for_frames_that_come_later(live_site: LiveSite) -> None:
    seen: list[dict[str, Any]] = []

    @live_site.streaming.authorizer
    def authorizer(action: str, sid: str) -> bool:
        seen.append(
            {
                "user": session.get("user"),
                "cookie": request.cookies.get("other"),
                "header": request.headers["X-Tenant"],
                "authorization": request.headers["Authorization"],
                "query": request.args.get("token"),
                "path": request.path,
                "host": request.host,
                "scheme": request.scheme,
                "address": request.remote_addr,
                "app": current_app._get_current_object() is live_site.app,  # type: ignore[attr-defined]
                "url": url_for("streams.snapshot", sid=sid),
            }
        )
        return bool(session.get("user") == "ann")

    headers = f"Cookie: {cookie(live_site, user='ann')}; other=crumb\r\nX-Tenant: t1\r\nAuthorization: Basic eDp5\r\n"
    websocket = live_site.websocket("?token=s3cret", headers)
    for sid in ("one", "two"):
        websocket.subscribed(sid)
        gevent.sleep(0.01)
    websocket.say({"t": "cancel", "sid": "one"})
    websocket.settle()
    expected = {
        "user": "ann", "cookie": "crumb", "header": "t1", "authorization": "Basic eDp5", "query": "s3cret",
        "path": "/streams/ws", "host": "localhost", "scheme": "http", "address": "127.0.0.1", "app": True,
    }  # fmt: skip
    assert seen == [{**expected, "url": f"/streams/{sid}"} for sid in ("one", "two", "one")]
    other = live_site.websocket("", headers.replace("session=", "session=x"))
    other.subscribe("three")
    assert other.answer("error")["code"] == "forbidden"
    assert seen[-1]["user"] is None
    assert "three" not in live_site.hub.channels


@pytest.mark.parametrize("way", ["socket", "iterable", "flask"])
def test_the_authorizer_sees_the_request_on_routes(live_site: LiveSite, way: Any) -> None:
    live_site.configure(way)
    live_site.streaming.authorizer(lambda action, sid: session.get("user") == "ann" and request.args["x"] == "1")
    headers = {"Cookie": cookie(live_site, user="ann")}
    assert ask(live_site, "/streams/chat/records?x=1", headers=headers).status == 200
    refused(ask(live_site, "/streams/chat/records?x=2", headers=headers), 403, "forbidden")
    refused(ask(live_site, "/streams/chat/records?x=1"), 403, "forbidden")


def test_one_connections_request_is_not_anothers(live_site: LiveSite) -> None:
    """Two authorizers wait at the same time, each in the context of its own client's request."""
    both = Event()
    seen: list[tuple[str, str]] = []

    @live_site.streaming.authorizer
    def authorizer(action: str, sid: str) -> bool:
        before = request.headers["X-User"]
        seen.append((sid, before))
        if len(seen) == 2:
            both.set()
        assert both.wait(LIMIT)
        return request.headers["X-User"] == before == sid

    one, two = live_site.websocket("", "X-User: one\r\n"), live_site.websocket("", "X-User: two\r\n")
    one.subscribe("one")
    two.subscribe("two")
    one.wait(lambda: one.folds["one"].greetings)
    two.wait(lambda: two.folds["two"].greetings)
    assert sorted(seen) == [("one", "one"), ("two", "two")]


def test_a_resumed_cursor_is_no_right(live_site: LiveSite) -> None:
    allowed = True
    live_site.streaming.authorizer(lambda action, sid: allowed)
    live_site.stream("chat").publish("note")
    fold = Fold("chat")
    websocket = live_site.websocket()
    websocket.subscribed("chat", fold)
    websocket.wait(lambda: fold.seq == 1)
    allowed = False
    token = fold.token()
    websocket.say({"t": "subscribe", "sid": "chat", "cursor": token})
    assert websocket.answer("error")["code"] == "forbidden"
    for path in ("events", "records", "events?until=idle"):
        mark = "&" if "?" in path else "?"
        refused(ask(live_site, f"/streams/chat/{path}{mark}cursor={token}"), 403, "forbidden")
        refused(ask(live_site, f"/streams/chat/{path}", headers={"Last-Event-ID": str(token)}), 403, "forbidden")


@pytest.mark.parametrize("answer", [0, None, "", []])
def test_whatever_is_false_is_a_no(live_site: LiveSite, answer: Any) -> None:
    allow(live_site, answer)
    refused(ask(live_site, "/streams/chat/events"), 403, "forbidden")


def test_a_failing_authorizer_allows_nothing_and_is_logged(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    websocket = live_site.websocket("", "X-User: x\r\n")
    websocket.leave()

    @live_site.streaming.authorizer
    def authorizer(action: str, sid: str) -> bool:
        raise LookupError("no such user")

    websocket = live_site.websocket()
    for frame, _ in FRAMES:
        websocket.say(frame)
        assert websocket.answer("error")["code"] == "forbidden"
    websocket.settle()  # it lives on
    logged = [
        record for record in caplog.records if record.name == "streaming.live" and record.levelno == logging.ERROR
    ]
    assert len(logged) == len(FRAMES)
    assert all(record.exc_info is not None for record in logged)
    for method, path, _ in ROUTES:
        response = ask(live_site, path, method).read()
        assert response.status == 500
        assert b"no such user" not in response.body
    assert live_site.hub.channels == {}
    assert len(live_site.hub.connections) == 1


def test_an_authorizer_that_waits_holds_up_its_own_client_only(live_site: LiveSite) -> None:
    go = Event()
    live_site.streaming.authorizer(lambda action, sid: sid == "quick" or go.wait(LIMIT))
    slow, quick = live_site.websocket(), live_site.websocket()
    slow.subscribe("slow")
    slow.say({"t": "ping", "id": "behind"})
    quick.subscribed("quick")
    assert slow.named("pong") == []
    assert "slow" not in live_site.hub.channels
    go.set()
    slow.answer("pong")
    assert [frame["t"] for frame in slow.frames] == ["hello", "subscribed", "pong"] or slow.folds["slow"].greetings


def test_a_client_that_leaves_while_its_authorizer_waits_is_let_go(live_site: LiveSite) -> None:
    go, waits = Event(), Event()
    live_site.streaming.authorizer(lambda action, sid: waits.set() or go.wait(LIMIT))
    websocket = live_site.websocket()
    websocket.subscribe("chat")
    assert waits.wait(LIMIT)
    websocket.leave(reset=True)
    go.set()
    until(live_site.is_idle)


def test_without_an_authorizer_one_may_read_and_cancel_and_nothing_else(live_site: LiveSite) -> None:
    live_site.streaming.on_publish("say")(lambda sid, data: data)
    message = live_site.message("chat")
    websocket = live_site.websocket()
    websocket.subscribed("chat")
    websocket.say({"t": "publish", "sid": "chat", "k": "say", "d": 1})
    assert websocket.answer("error")["code"] == "forbidden"
    assert ask(live_site, "/streams/chat").read().status == 200
    refused(ask(live_site, "/streams/chat/records", "POST"), 403, "forbidden")
    assert ask(live_site, "/streams/chat/cancel", "POST").read().json == {"cancelled": [message.mid]}


# -- the ingest token


@pytest.mark.parametrize(
    "value",
    [
        None, "", "Bearer", "Bearer ", "Bearer a-long-secre", "Bearer a-long-secret-", "bearer", "Basic a-long-secret",
        "a-long-secret", "Bearer A-LONG-SECRET", "Bearer a-long-secret a-long-secret", "Bearer \xe9",
        "Bearer,a-long-secret",
    ],
)  # fmt: skip
def test_a_missing_or_wrong_ingest_token_is_401(live_site: LiveSite, value: str | None) -> None:
    live_site.configure(ingest_token="a-long-secret")
    response = ask(live_site, "/streams/chat/records", "POST", {} if value is None else {"Authorization": value})
    refused(response, 401, "unauthorized")
    assert response.headers["www-authenticate"] == "bearer"  # the client of the tests lowers it
    assert live_site.hub.channels == {}


@pytest.mark.parametrize("value", ["Bearer a-long-secret", "bearer a-long-secret", "BEARER  a-long-secret "])
def test_the_right_ingest_token_suffices(live_site: LiveSite, value: str) -> None:
    live_site.configure(ingest_token="a-long-secret")
    assert ask(live_site, "/streams/chat/records", "POST", {"Authorization": value}).read().status == 200
    asked = allow(live_site, False)
    assert ask(live_site, "/streams/chat/records", "POST", {"Authorization": value}).read().status == 200
    assert asked == []


def test_without_the_token_the_authorizer_decides(live_site: LiveSite) -> None:
    live_site.configure(ingest_token="a-long-secret")
    asked = allow(live_site, False)
    refused(ask(live_site, "/streams/chat/records", "POST", {"Authorization": "Bearer wrong-one"}), 401, "unauthorized")
    assert asked == [("ingest", "chat")]
    allow(live_site)
    assert ask(live_site, "/streams/chat/records", "POST").read().status == 200


def test_the_token_is_a_right_to_ingest_only(live_site: LiveSite) -> None:
    live_site.configure(ingest_token="a-long-secret")
    allow(live_site, False)
    token = {"Authorization": "Bearer a-long-secret"}
    refused(ask(live_site, "/streams/chat/events", headers=token), 403, "forbidden")
    refused(ask(live_site, "/streams/chat/cancel", "POST", token), 403, "forbidden")


# -- what clients publish


def publishing(site: LiveSite, **frame: Any) -> dict[str, Any]:
    """The answer to a publish frame."""
    websocket = site.websocket()
    websocket.say({"t": "publish", "sid": "chat", "k": "user.message", "d": None, **frame})
    websocket.wait(lambda: len(websocket.frames) == 2)
    return websocket.frames[1]


def test_a_handlers_result_goes_back_in_the_ack(live_site: LiveSite) -> None:
    allow(live_site)
    called = []

    @live_site.streaming.on_publish("user.message")
    def said(sid: str, data: Any) -> Any:
        called.append((sid, data))
        return {"got": data}

    data = {"text": "hello 😀", "n": [1, None]}
    assert publishing(live_site, d=data, id="a1") == {"t": "ack", "id": "a1", "ok": True, "d": {"got": data}}
    assert publishing(live_site, id=5)["id"] == 5
    assert "id" not in publishing(live_site)
    assert called == [("chat", data), ("chat", None), ("chat", None)]
    assert live_site.hub.channels == {}  # what a stream gets of it is the app's affair


def test_a_handler_without_a_result_is_acknowledged_without_one(live_site: LiveSite) -> None:
    allow(live_site)
    live_site.streaming.on_publish("user.message")(lambda sid, data: None)
    assert publishing(live_site, id=1) == {"t": "ack", "id": 1, "ok": True}


def test_a_kind_without_a_handler_is_not_supported(live_site: LiveSite) -> None:
    allow(live_site)
    assert publishing(live_site, id=1) == {"t": "ack", "id": 1, "ok": False, "error": "not_supported"}


def test_a_handler_that_fails_is_acknowledged_so_logged_once_and_tells_nothing(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    allow(live_site)

    @live_site.streaming.on_publish("user.message")
    def said(sid: str, data: Any) -> Any:
        raise LookupError("secret")

    assert publishing(live_site, id=1) == {"t": "ack", "id": 1, "ok": False, "error": "failed"}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "secret" in caplog.text


@pytest.mark.parametrize("result", [float("nan"), {1, 2}, object(), b"bytes"])
def test_a_result_that_cannot_be_sent_is_a_failure(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture, result: Any
) -> None:
    allow(live_site)
    live_site.streaming.on_publish("user.message")(lambda sid, data: result)
    assert publishing(live_site, id=1) == {"t": "ack", "id": 1, "ok": False, "error": "failed"}
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_handler_runs_in_the_requests_context_and_may_produce(live_site: LiveSite) -> None:
    allow(live_site)

    def answer(sid: str, text: str) -> None:
        with live_site.streaming.stream(sid).message() as message:
            message.append(f"you said {text}")

    @live_site.streaming.on_publish("user.message")
    def said(sid: str, data: Any) -> Any:
        live_site.streaming.stream(sid).publish("user.message", {"text": data, "by": session["user"]})
        live_site.streaming.spawn(answer, sid, data)
        return session["user"]

    websocket = live_site.websocket("", f"Cookie: {cookie(live_site, user='ann')}\r\n")
    fold = websocket.subscribed("chat")
    websocket.say({"t": "publish", "sid": "chat", "k": "user.message", "d": "hello"})
    websocket.wait(lambda: fold.seq == 5)
    assert websocket.named("ack") == [{"t": "ack", "ok": True, "d": "ann"}]
    assert fold.events[0]["d"] == {"text": "hello", "by": "ann"}
    assert fold.text(3) == "you said hello"


@pytest.mark.parametrize("kind", ["message.start", "part.x", "X", "", "a b", "9", "x" * 65])
def test_a_handler_for_a_kind_that_clients_cannot_publish_is_refused(live_site: LiveSite, kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        live_site.streaming.on_publish(kind)


# -- nothing from outside gets where it must not


NASTY = [
    "a\r\nX-Evil: 1",
    "a\nevent: evil",
    'a"}',
    "a%0d%0aX-Evil:%201",
    "a\0b",
    "a\x1b[31m",
    "a\u2028b",
    "a\x85b",
    "<script>",
]


def is_clean(text: str) -> bool:
    """Printable ASCII on one line."""
    return re.fullmatch(r"[ -~]*", text) is not None


def test_nothing_from_outside_reaches_a_header_a_field_or_a_log_line(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    live_site.configure(origins=ALLOWED, ingest_token="a-long-secret")
    caplog.set_level(logging.DEBUG)
    live_site.stream("chat").publish("note")
    for nasty in NASTY:
        once = quote(nasty, safe="")
        for path in (
            f"/streams/{once}",
            f"/streams/{once}/events",
            f"/streams/{once}/cancel",
            f"/streams/activity?sid={once}",
            f"/streams/chat/events?cursor={once}",
            f"/streams/chat/records?cursor={once}&deltas=0&until={once}",
            f"/streams/chat/records?producer={once}",
        ):
            method = "POST" if "cancel" in path or "producer" in path else "GET"
            response = live_site.ask(path, method, {"Authorization": "Bearer a-long-secret"})
            if response.status == 200:
                response.wait(lambda response=response: response.frames)
            head = response.raw_head.decode("latin-1")  # type: ignore[attr-defined]
            assert all(is_clean(line) for line in head.split("\r\n")), head
            assert "evil" not in head.lower()
            assert "\r" not in response.body.decode()
            assert not re.search(r"^event: evil", response.body.decode(), re.MULTILINE)
            response.leave()
        headers = {
            name: nasty.encode("ascii", "replace").decode().replace("\r", " ").replace("\n", " ")
            for name in ("Last-Event-ID", "Origin")
        }
        for name, value in headers.items():
            response = live_site.ask("/streams/chat/events", headers={name: value.replace("\0", "")})
            assert "evil" not in response.raw_head.decode("latin-1").lower()  # type: ignore[attr-defined]
            response.leave()
    websocket = live_site.websocket()
    for nasty in NASTY:
        for frame in (
            {"t": "subscribe", "sid": nasty},
            {"t": "subscribe", "sid": "chat", "cursor": nasty},
            {"t": "subscribe", "sid": "chat", "mode": nasty},
            {"t": "cancel", "sid": "chat", "mid": nasty},
            {"t": nasty},
            {"t": "publish", "sid": "chat", "k": nasty, "d": nasty},
        ):
            websocket.say(frame)
        websocket.send(masked(TEXT, nasty.encode()))
    websocket.settle()
    assert all(is_clean(error["msg"]) for error in websocket.named("error"))
    assert len(websocket.named("error")) >= 6 * len(NASTY)
    own = [record.getMessage() for record in caplog.records if record.name.startswith("streaming")]
    assert own
    assert all(is_clean(message) for message in own), [message for message in own if not is_clean(message)]


def test_the_address_that_a_proxy_tells_counts_and_is_clean_in_the_log(
    live_site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    live_site.configure(max_connections_per_ip=1)
    live_site.app.wsgi_app = ProxyFix(live_site.app.wsgi_app, x_for=1)  # type: ignore[method-assign]
    caplog.set_level(logging.DEBUG, "streaming.live")
    for address, status in (("10.0.0.1", 200), ("10.0.0.2", 200), ("10.0.0.1", 429), ("x\x1b[31m\x85", 200)):
        assert ask(live_site, "/streams/chat/events?deltas=0", headers={"X-Forwarded-For": address}).status == status
    assert len(caplog.records) >= 6
    assert all(is_clean(record.getMessage()) for record in caplog.records)


def test_ids_that_the_grammar_allows_come_back_as_they_are(live_site: LiveSite) -> None:
    sid = "A9._~:-" + "x" * 121
    response = live_site.ask(f"/streams/{quote(sid, safe='')}/events")
    response.wait(lambda: response.frames)
    assert response.frames[0]["sid"] == sid
    websocket: WebSocket = live_site.websocket()
    websocket.subscribed(sid)
    assert json.loads(json.dumps(websocket.frames[-1]))["sid"] == sid
