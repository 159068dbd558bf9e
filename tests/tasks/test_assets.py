"""The asset cache: whole files only, by content, checked on every use; offline it says what to do."""

import asyncio
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from guiderail.tasks.assets import AssetCache, AssetError


@pytest.fixture
def server():
    """An HTTP server on loopback: path -> (status, body, promised length); counts requests."""
    pages, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            status, body, length = pages[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(length if length is not None else len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", pages, asked
    httpd.shutdown()
    httpd.server_close()


def test_a_file_is_fetched_once_and_lies_under_its_hash(tmp_path, server):
    url, pages, asked = server
    pages["/a"] = (200, b"hello", None)
    cache = AssetCache(tmp_path)
    path = asyncio.run(cache.get(f"{url}/a"))
    assert path.read_bytes() == b"hello"
    assert path.name == hashlib.sha256(b"hello").hexdigest()
    assert AssetCache(tmp_path, offline=True).fetch(f"{url}/a") == path
    assert asked == ["/a"]
    assert not list((tmp_path / "parts").iterdir())


def test_a_damaged_copy_is_never_handed_out(tmp_path, server):
    url, pages, asked = server
    pages["/a"] = (200, b"hello", None)
    cache = AssetCache(tmp_path)
    path = cache.fetch(f"{url}/a")
    path.chmod(0o644)
    path.write_bytes(b"hullo")
    assert cache.fetch(f"{url}/a").read_bytes() == b"hello"
    assert len(asked) == 2


def test_what_comes_cut_short_or_changed_is_refused(tmp_path, server):
    url, pages, _ = server
    pages["/short"] = (200, b"hel", 5)
    pages["/pinned"] = (200, b"other", None)
    pages["/gone"] = (404, b"", None)
    cache = AssetCache(tmp_path, {f"{url}/pinned": hashlib.sha256(b"hello").hexdigest()})
    for name, why in (("short", "cut short"), ("pinned", "was changed"), ("gone", "HTTP 404")):
        with pytest.raises(AssetError, match=why):
            cache.fetch(f"{url}/{name}")
    assert not (tmp_path / "blobs").exists()
    assert not list((tmp_path / "parts").iterdir())


def test_without_network_the_error_says_what_to_do(tmp_path):
    with pytest.raises(AssetError, match=r"http://x\.test/a: not in the cache .*downloads are off.*Fill the cache"):
        AssetCache(tmp_path, offline=True).fetch("http://x.test/a")
    with pytest.raises(AssetError, match="cannot be fetched"):
        AssetCache(tmp_path).fetch("http://127.0.0.1:9/a")
    with pytest.raises(AssetError, match="not among the hosts"):
        AssetCache(tmp_path, allow=frozenset({"huggingface.co"})).fetch("http://127.0.0.1:9/a")
    with pytest.raises(AssetError, match="must be an http"):
        AssetCache(tmp_path).fetch("file:///etc/passwd")
    cache = AssetCache(tmp_path, offline=True)
    cache.add("http://x.test/a", b"brought")
    assert cache.fetch("http://x.test/a").read_bytes() == b"brought"
