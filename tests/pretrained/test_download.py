"""Downloads from a local server that behaves: whole, broken off, resumed, refused.

What servers that do not behave send is in tests/attacks/test_hostile_server.py.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hostile_server import Request, Server, archive
from processes import HUNG, wait_until
from released_files import logits, path, tensors

from vit_jax.foundation import buckets
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import catalogue, class_names, download
from vit_jax.pretrained.http_download import Patience

PATIENCE = Patience(timeout=10, pause=0)
CONTENT = archive(bytes(range(256)) * 40_000)  # 10 MB
ADDRESS = '/vit_models/imagenet21k/ViT-B_16.npz'


@pytest.fixture
def server(monkeypatch, tmp_path):
  """Stands in for the public buckets and any other host; a test says what it serves."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  server = Server()
  serve(server, {ADDRESS: CONTENT, '/model.npz': CONTENT})
  monkeypatch.setattr(catalogue, 'BUCKETS_URL', server.url('/'))
  threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
  yield server
  server.closing.set()
  close(server)


def serve(server: Server, files: dict[str, bytes], **options: str | int | None) -> None:
  """Serves these files; all others are missing."""
  server.behave = lambda request: (
    request.send_range(files[request.path], **options) if request.path in files else request.send(404)
  )


def close(server: Server) -> None:
  """There is no network from here on."""
  server.shutdown()
  server.server_close()


def local_file(source, kind='checkpoint'):
  return download.local_file(source, kind, PATIENCE)


def partial_files(tmp_path):
  return list(tmp_path.rglob('*.partial'))


def test_a_file_is_downloaded_whole_and_only_once(server, tmp_path):
  file = local_file(server.url(ADDRESS))
  assert file.read_bytes() == CONTENT
  assert file.is_relative_to(tmp_path / 'cache' / 'vit_jax') and file.name == 'ViT-B_16.npz'
  assert local_file(server.url(ADDRESS)) == file
  assert server.ranges() == [None]
  assert not partial_files(tmp_path)


@pytest.mark.parametrize(
  ('source', 'address'),
  [
    ('imagenet21k/ViT-B_16', ADDRESS),
    ('gs://vit_models/imagenet21k/ViT-B_16.npz', ADDRESS),
    ('imagenet21k+imagenet2012/R50+ViT-B_16', '/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz'),
  ],
)
def test_published_names_and_buckets_are_public_addresses_with_a_plus_quoted(server, source, address):
  serve(server, {address: CONTENT})
  file = local_file(source)
  assert file.read_bytes() == CONTENT
  assert file.name == address.split('/')[-1].replace('%2B', '+')


def test_without_the_extra_a_public_file_of_a_bucket_loads_and_another_names_it(server, monkeypatch):
  monkeypatch.setattr(buckets, 'is_installed', lambda _: False)
  serve(server, {'/mine/a.npz': CONTENT})
  assert local_file('gs://mine/a.npz').read_bytes() == CONTENT
  with pytest.raises(UserError, match=r"no public file gs://mine/b.npz .* pip install 'vit_jax\[gcs\]'"):
    local_file('gs://mine/b.npz')


def test_a_model_loads_from_the_network(server, golden):
  content = path(golden, 'a_vit_token').read_bytes()
  server.behave = lambda request: request.send_range(content, until=None if request.number else 70_000)
  io = tensors(golden / 'a_vit_token.io.npz')
  for _ in range(2):
    np.testing.assert_allclose(logits('sam/ViT-B_32', io['images']), io['logits'], rtol=0, atol=1e-5)
  assert server.ranges() == [None, 'bytes=70000-']


def test_a_query_is_part_of_the_address(server):
  serve(server, {f'/download?file={letter}.npz': archive(letter.encode()) for letter in 'AB'})
  for letter in 'ABAB':
    file = local_file(server.url(f'/download?file={letter}.npz'))
    assert file.read_bytes() == archive(letter.encode())
    assert file.name == f'{letter}.npz'
  assert len(server.requests) == 2


@pytest.mark.parametrize('query', ['', '?download=true', '?download=true&file=other.npz'])
def test_a_safetensors_file_keeps_its_suffix(server, query):
  serve(server, {'/model.safetensors' + query: (2).to_bytes(8, 'little') + b'{}'})
  assert local_file(server.url('/model.safetensors' + query)).name == 'model.safetensors'


def test_the_next_call_resumes_what_an_earlier_one_kept(server, tmp_path):
  server.behave = lambda request: request.send_range(CONTENT, until=request.first + 1_000_000)
  with pytest.raises(UserError, match=r'after 5,000,000 bytes, which are kept: the same again') as error:
    local_file(server.url())
  assert '\n' not in str(error.value)
  assert partial_files(tmp_path)
  serve(server, {'/model.npz': CONTENT})
  assert local_file(server.url()).read_bytes() == CONTENT
  assert server.ranges()[-1] == 'bytes=5000000-'
  assert not partial_files(tmp_path)


def test_what_cannot_be_resumed_is_not_said_to_be_kept(server, tmp_path):
  serve(server, {'/model.npz': CONTENT}, etag=None, until=3_000_000)
  with pytest.raises(UserError, match=r'broke off .*; check the network, or give a local path') as error:
    local_file(server.url())
  assert 'kept' not in str(error.value)
  assert not partial_files(tmp_path)


def test_a_cached_file_of_another_size_is_fetched_again(server):
  file = local_file(server.url())
  file.write_bytes(CONTENT[:-1])
  assert local_file(server.url()).read_bytes() == CONTENT
  assert len(server.requests) == 2


def test_a_cached_file_needs_neither_network_nor_a_writable_cache(server):
  file = local_file(server.url())
  close(server)
  file.with_name('.lock').unlink(missing_ok=True)
  file.parent.chmod(0o500)
  assert local_file(server.url()) == file
  assert not file.with_name('.lock').exists()


def test_a_cache_that_cannot_be_written_is_named(server, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', '/dev/null')
  with pytest.raises(UserError, match=r'cannot be kept in the cache \(.*/dev/null.*set XDG_CACHE_HOME'):
    local_file(server.url())


PUBLISHED = ['imagenet21k/ViT-B_16.npz', 'augreg/B_16', 'bit/distill/R50x1_224']


@pytest.mark.parametrize('network', [True, False])
@pytest.mark.parametrize(
  ('name', 'offered'),
  [*((name, None) for name in PUBLISHED), ('imagenet21k/ViT-B_61', 'imagenet21k/ViT-B_16')],
)
def test_a_name_that_does_not_come_offers_the_nearest_if_it_is_not_published(server, name, offered, network):
  serve(server, {})
  if not network:
    close(server)
  said = f'no public file {name} .*404' if network else f'{name} .*cannot be reached .*give a local path'
  with pytest.raises(UserError, match=said) as error:
    local_file(name)
  assert offered in str(error.value) if offered else 'perhaps' not in str(error.value)
  assert len(server.requests) == network


@pytest.mark.parametrize(
  ('status', 'times', 'said'),
  [
    (403, 1, r'There is no public file .* answers 403'),
    (401, 1, r'cannot be downloaded .*: the server answers 401; check the address'),
    (503, 5, 'the server answers 503; check the network, or give a local path'),
  ],
)
def test_a_refusal_is_not_asked_again_and_a_lasting_failure_is_named(server, status, times, said):
  server.behave = lambda request: request.send(status)
  with pytest.raises(UserError, match=said):
    local_file(server.url())
  assert len(server.requests) == times


@pytest.mark.parametrize('status', [500, 503, 429, 408])
def test_a_passing_failure_of_the_server_is_asked_again(server, status):
  server.behave = lambda request: request.send(status) if request.number < 4 else request.send_range(CONTENT)
  assert local_file(server.url()).read_bytes() == CONTENT
  assert len(server.requests) == 5


def test_the_proxy_of_the_environment_is_used(server, monkeypatch):
  serve(server, {'http://example.invalid/model.npz': archive(b'by proxy')})
  monkeypatch.setenv('http_proxy', f'localhost:{server.server_port}')
  monkeypatch.setenv('no_proxy', '')
  assert local_file('http://example.invalid/model.npz').read_bytes() == archive(b'by proxy')


def test_a_host_without_proxy_is_asked_directly(server, monkeypatch):
  monkeypatch.setenv('http_proxy', 'localhost:1')
  monkeypatch.setenv('no_proxy', 'localhost')
  assert local_file(server.url()).read_bytes() == CONTENT


def test_class_names_come_from_an_address(server):
  serve(server, {'/names.txt': 'Katze\nBlüte\n'.encode()})
  assert class_names.read(server.url('/names.txt'), 2) == ('Katze', 'Blüte')


CHILD = 'import sys; from vit_jax.pretrained import download; print(download.local_file(sys.argv[1]))'


def start_child(url, tmp_path) -> subprocess.Popen:
  environment = os.environ | {'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  return subprocess.Popen(
    [sys.executable, '-c', CHILD, url], env=environment, stdout=subprocess.PIPE, text=True
  )


def serve_slowly(server: Server, seconds: float) -> None:
  """The last byte comes after so many seconds, or when the test ends."""

  def behave(request: Request) -> None:
    request.send(200, CONTENT[:-1], Content_Length=len(CONTENT), ETag='"1"')
    request.closing.wait(seconds)
    request.write(CONTENT[-1:])

  server.behave = behave


def test_two_processes_download_once(server, tmp_path):
  serve_slowly(server, seconds=3)
  children = [start_child(server.url(), tmp_path) for _ in range(2)]
  files = [child.communicate(timeout=HUNG)[0].strip() for child in children]
  assert files[0] == files[1]
  assert pathlib.Path(files[0]).read_bytes() == CONTENT
  assert server.ranges() == [None]


def test_a_killed_process_leaves_no_lock_and_its_bytes(server, tmp_path):
  serve_slowly(server, seconds=60)
  child = start_child(server.url(), tmp_path)
  wait_until(lambda: any(file.stat().st_size > 5_000_000 for file in partial_files(tmp_path)))
  child.send_signal(signal.SIGKILL)
  child.communicate(timeout=HUNG)
  serve(server, {'/model.npz': CONTENT})
  kept = partial_files(tmp_path)[0].stat().st_size
  assert local_file(server.url()).read_bytes() == CONTENT
  assert server.ranges() == [None, f'bytes={kept}-']
