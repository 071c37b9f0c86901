"""Who may ask the studio, and what it answers to those who may not."""

import http.client
import io
import random
import socket

import httpx
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from springwell.app.studio.guard import MAX_UPLOAD, Guard, is_loopback
from springwell.app.studio.wire import unpack

PAGES = ["/", "/models", "/run?name=tiny", "/static/main.js", "/download/a/b/c.png", "/nothing"]


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_answered_without_the_token(server, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"springwell-{server.port}=wrong"}, {"Cookie": "a=b; ="}):
        answer = httpx.get(server.origin + path, headers=headers)
        assert answer.status_code == 401
        assert "token" in answer.text
        assert "set-cookie" not in answer.headers
    assert httpx.get(f"{server.origin}{path}{'&' if '?' in path else '?'}token=wrong").status_code == 401


def test_the_address_gives_a_cookie_that_opens_everything_else(server):
    with httpx.Client(base_url=server.origin) as client:
        answer = client.get(f"/?token={server.token}")
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/static/main.js").headers["content-type"].startswith("text/javascript")
        assert client.get("/models").json()["models"]


def test_answers_forbid_everything_foreign(http):
    headers = http.get("/").headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_asks_nobody_else(http, server):
    """No address of another machine is in any file of the page."""
    from springwell.app.studio.server import STATIC

    for path in STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://localhost.evil.example"])
def test_other_origins_are_refused(server, http, origin):
    answer = http.get("/models", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "only the studio's own page" in answer.text
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/link?token={server.token}", origin=origin)
    assert refused.value.response.status_code == 403


def test_other_sites_are_refused_by_what_browsers_say(http):
    assert http.get("/models", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.get("/models", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    # A link in a mail may open the page, if it has the token.
    assert http.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1:1", "192.168.0.7:{port}", "", "[", "[::1", "a:b:c"]
)
def test_other_hosts_are_refused(server, http, host):
    answer = http.get("/models", headers={"Host": host.format(port=server.port)})
    assert answer.status_code in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_our_own_names_are_taken(server, http, host):
    assert http.get("/models", headers={"Host": host.format(port=server.port)}).status_code == 200


def test_a_studio_for_other_machines_is_found_by_address_and_by_its_name():
    guard = Guard(None, "token", "0.0.0.0", 8640)
    assert guard.is_ours("192.168.0.7:8640")
    assert not guard.is_ours("evil.example:8640")
    assert Guard(None, "token", "lab.example", 80).is_ours("lab.example")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")


def test_a_websocket_needs_the_token(server):
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/link")
    assert refused.value.response.status_code in (401, 403)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/static/%00",
        "/preview?name=digits&file=../config.json",
        "/preview?name=digits&file=model.safetensors",
        "/preview?name=../../etc&file=passwd",
        "/preview?name=/etc&file=passwd",
        "/run?name=..",
        "/run?name=/",
        "/run?name=runs/../../tiny",
        "/run?name=",
        "/download/../../etc/passwd",
        "/download/a/b/..%2f..%2fpasswd",
    ],
)
def test_paths_outside_are_refused(server, path):
    """Sent as they are; a client would mend them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.port}")
    connection.putheader("Authorization", f"Bearer {server.token}")
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status in (400, 404)
    assert len(text) < 500
    assert len(text.split()) > 3
    assert "Traceback" not in text


def test_a_gigabyte_is_refused_before_it_is_sent(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        lines = [
            "POST /upload?model=digits HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}",
            f"Authorization: Bearer {server.token}",
        ]
        raw.sendall("\r\n".join([*lines, f"Content-Length: {2**30}", "", ""]).encode())
        answer = ""
        while "MiB" not in answer and (part := raw.recv(4096)):
            answer += part.decode()
    assert answer.startswith("HTTP/1.1 413")
    assert "32 MiB" in answer


def test_a_body_without_a_length_is_cut_at_the_limit(http):
    def chunks():
        for _ in range(MAX_UPLOAD // 2**20 + 8):
            yield bytes(2**20)

    try:
        answer = http.post("/upload?model=digits", content=chunks())
    except (httpx.WriteError, httpx.RemoteProtocolError):
        return
    assert answer.status_code == 413


def test_a_message_beyond_the_limit_ends_the_connection_and_nothing_else(server, page, http):
    with pytest.raises(ConnectionClosed):
        _ = page.socket.send(bytes(33 << 20)), page.hear()
    assert http.get("/models").status_code == 200


def png(mode="L", size=(20, 30), colour=128):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "PNG")
    return file.getvalue()


def test_a_file_becomes_an_image_of_the_models_shape(http):
    answer = http.post("/upload?model=digits", content=png("RGB", colour=(128, 128, 128)))
    assert answer.status_code == 200
    _, arrays = unpack(answer.content)
    np.testing.assert_array_equal(arrays["image"], np.full((8, 8, 1), 128))


@pytest.mark.parametrize("body", [b"", b"no image", png()[:40], b"GIF89a" + bytes(20), bytes(5000)], ids=len)
def test_broken_images_are_refused(http, body):
    answer = http.post("/upload?model=digits", content=body)
    assert answer.status_code == 400
    assert answer.text.count("\n") == 1
    assert "file" in answer.text


def test_an_upload_for_a_model_that_is_not_there_is_refused(http):
    for name in ("", "nothing", "../tiny", "runs/tiny"):
        assert http.post("/upload", params={"model": name}, content=png()).status_code == 400


def test_mutated_images_are_read_or_refused(http):
    """The fuzzing of tests/faults, over the wire."""
    good, generator = png("RGB", (9, 9), (1, 200, 3)), random.Random(1)
    for _ in range(60):
        body = bytearray(good)
        for _ in range(generator.randrange(1, 8)):
            body[generator.randrange(len(body))] = generator.randrange(256)
        answer = http.post("/upload?model=digits", content=bytes(body))
        assert answer.status_code in (200, 400), answer.text
        assert "unexpected" not in answer.text


def test_mutated_requests_never_break_the_server(server, http):
    """Raw bytes that are nearly HTTP; afterwards the server answers as before, and its log is empty."""
    good = f"GET /models?token={server.token} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode()
    generator = random.Random(2)
    for _ in range(60):
        body = bytearray(good)
        for _ in range(generator.randrange(1, 6)):
            body[generator.randrange(len(body))] = generator.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            raw.sendall(bytes(body))
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(65536)
        assert b" 500 " not in answer[:16]
    assert http.get("/models").status_code == 200
