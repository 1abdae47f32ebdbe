"""The hostile server as a fixture, with a cache of the test's own."""

import threading
import time

import pytest
from hostile_server import BOUND, Server


@pytest.fixture
def server(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('no_proxy', '*')
  server = Server()
  threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
  began = time.monotonic()
  yield server
  took = time.monotonic() - began
  server.closing.set()
  server.shutdown()
  server.server_close()
  assert took < BOUND
