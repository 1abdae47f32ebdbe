"""Checkpoints on the Hugging Face Hub, from a Hub on this machine that speaks its protocol."""

import pathlib
import re
import sys

import fork_server
import huggingface_hub
import numpy as np
import pytest
from hub_emulator import TOKEN, Hub, running
from PIL import Image
from released_files import path, read, write_folder

from vit_jax.foundation import hub as hub_lib
from vit_jax.foundation.errors import UserError
from vit_jax.options import config_files
from vit_jax.pretrained import formats


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """A Hub with a model: folder and .npz."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('huggingface_hub.file_download.time.sleep', lambda seconds: None)  # before it resumes
  with running(tmp_path / 'cache') as hub:
    yield hub


@pytest.fixture(scope='module')
def folder(golden, tmp_path_factory):
  """A model's folder."""
  folder = tmp_path_factory.mktemp('model') / 'vit'
  write_folder(read(path(golden, 'a_vit_token')), folder)
  return folder


def head(source: str) -> np.ndarray:
  return formats.read(source).params['head']['kernel']


def turn_off(hub: Hub) -> None:
  """There is no network from here on."""
  hub.shutdown()
  hub.server_close()
  huggingface_hub.close_session()  # its connections


def said(source: str) -> str:
  """The sentence about a source that cannot be read."""
  with pytest.raises(UserError) as error:
    formats.read(source)
  assert '\n' not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize(
  ('name', 'address'),
  [
    ('hf:org/name', ('org/name', None, None)),
    ('hf://org/name@v1.0', ('org/name', 'v1.0', None)),
    ('hf-hub:timm/vit_tiny.a@refs/pr/1:sub/a.npz', ('timm/vit_tiny.a', 'refs/pr/1', 'sub/a.npz')),
    ('hf_hub:org/name:a.npz', ('org/name', None, 'a.npz')),
  ],
)
def test_addresses(name, address):
  assert hub_lib.address_of(name) == address


@pytest.mark.parametrize(
  ('name', 'repository'),
  [
    ('org/name@main', 'org/name'),
    ('vit_base_patch16_224.augreg_in21k_ft_in1k', 'timm/vit_base_patch16_224.augreg_in21k_ft_in1k'),
    ('mixer_b16_224.goog_in21k', 'timm/mixer_b16_224.goog_in21k'),
    ('my_model.npz', None),
    ('runs/my_model.safetensors', None),
    ('/org/name', None),
    ('a/b/c', None),
    ('ViT-B_16', None),
  ],
)
def test_names_without_a_prefix(name, repository):
  assert hub_lib.address_of(name) is None
  assert getattr(hub_lib.guessed(name), 'repository', None) == repository


@pytest.mark.parametrize(
  'source',
  [
    'hf:me/vit',
    'me/vit',
    'hf-hub:me/vit@main',
    'hf:me/vit:model.safetensors',
    'hf:me/all:inner',
    'hf:me/npz',
  ],
)
def test_a_model_loads_by_each_of_its_names(source, hub, folder, golden):
  files = {file.name: file.read_bytes() for file in folder.iterdir()}
  hub.add('models/me/vit', folder)
  hub.add('models/me/all', {f'inner/{name}': content for name, content in files.items()})
  npz = path(golden, 'a_vit_token').read_bytes()
  hub.add('models/me/npz', {'README.md': b'', 'sub/b.npz': b'', 'a.npz': npz, 'pytorch_model.bin': b'pickle'})
  np.testing.assert_array_equal(head(source), head(str(folder)))
  assert not hub.asked('.bin') and not hub.leaked


def test_commands_and_configs_take_the_names(hub, folder, tmp_path):
  hub.add('models/me/vit', folder)
  Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / 'photo.png')
  result = fork_server.run('vit_jax.predict', '--checkpoint=hf:me/vit@main', 'photo.png', cwd=tmp_path)
  assert result.returncode == 0 and 'photo.png' in result.stdout, result.stderr
  config = config_files.load('finetune:me/vit@main,digits')
  assert (
    config.init.checkpoint == 'me/vit@main'
    and config.model.width == formats.architecture('me/vit').model.width
  )


def test_names_of_timm_are_those_of_its_organization(hub, folder):
  hub.add('models/timm/vit_mine_patch4_8.in_test', folder)
  np.testing.assert_array_equal(head('vit_mine_patch4_8.in_test'), head(str(folder)))


def test_a_folder_of_that_name_comes_first(hub, folder, tmp_path):
  hub.add('models/runs/mine', folder)
  (tmp_path / 'runs').mkdir()
  text = said('runs/mine')
  assert text.startswith('There is no checkpoint runs/mine; ') and text.endswith(
    '? (On the Hub: hf:runs/mine.)'
  )
  assert not hub.requests


def test_a_cut_download_goes_on_where_it_ended(hub, folder, monkeypatch):
  monkeypatch.setattr('huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE', 500)  # what it writes at a time
  hub.add('models/me/vit', folder)
  hub.cut_at = 1000
  np.testing.assert_array_equal(head('hf:me/vit'), head(str(folder)))
  assert hub.asked('/storage/') == [None, 'bytes=1000-']


@pytest.mark.parametrize('way', ['offline', 'no network'])
def test_a_second_load_needs_no_network(way, hub, folder, golden, monkeypatch):
  hub.add('models/me/vit', folder)
  hub.add('models/me/npz', {'a.npz': path(golden, 'a_vit_token').read_bytes()})
  sources = ('hf:me/vit', 'hf:me/npz', 'hf:me/npz@main:a.npz')
  for source in sources:
    head(source)
  if way == 'offline':
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  else:
    turn_off(hub)
  hub.requests.clear()
  for source in sources:
    np.testing.assert_array_equal(head(source), head(str(folder)))
  assert not hub.requests
  reason = (
    'HF_HUB_OFFLINE is set' if way == 'offline' else r'does not answer \(.*refused\); check the network'
  )
  assert re.match(f'hf:me/other is not in the cache, and .*{reason}', said('hf:me/other'))
  assert 'There is no checkpoint me/other; check the path. hf:me/other is not in the cache' in said(
    'me/other'
  )


def test_what_is_loaded_twice_is_downloaded_once_and_changes_are_seen(hub, folder, golden, tmp_path):
  repository = hub.add('models/me/vit', folder)
  first = repository.branches['main']
  head('hf:me/vit')
  head('hf:me/vit')
  assert len(hub.asked('/storage/')) == 1
  other = tmp_path / 'other'
  write_folder(read(path(golden, 'b_vit_gap')), other)
  files = {file.name: file.read_bytes() for file in other.iterdir()}
  hub.storage |= hub.add('models/me/other', files) and hub.storage
  repository.commit(files)
  repository.commit({}, 'empty')
  np.testing.assert_array_equal(head('hf:me/vit'), head(str(other)))
  np.testing.assert_array_equal(head(f'hf:me/vit@{first}'), head(str(folder)))
  assert said('hf:me/vit@empty').startswith('hf:me/vit@empty has no .safetensors or .npz file; ')
  assert said('hf:me/vit@v2').startswith('me/vit has no revision v2; ')


def test_bytes_that_are_not_those_of_the_hub_are_noticed(hub, folder):
  """The library compares lengths; what comes by the other way is compared with its SHA-256 when it is read."""
  files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != '.sha256'}
  hub.add('models/me/vit', files)
  (oid,) = (oid for oid, content in hub.storage.items() if content == files['model.safetensors'])
  hub.storage[oid] = files['model.safetensors'][:-4] + b'abcd'
  text = said('hf:me/vit')
  assert f'is damaged: its SHA-256 is not {oid}; remove ' in text
  pathlib.Path(text.partition('; remove ')[2].removesuffix(' and load it again.')).unlink()
  hub.storage[oid] = files['model.safetensors']
  np.testing.assert_array_equal(head('hf:me/vit'), head(str(folder)))


def test_private_and_gated_models_need_a_token(hub, folder, monkeypatch):
  hub.add('models/me/mine', folder, access='private')
  hub.add('models/me/gated', folder, access='gated')
  assert said('hf:me/mine') == (
    'There is no repository me/mine on the Hub, or it is private; check the name, or log in by `hf auth login`, or set '
    'HF_TOKEN.'
  )
  assert said('hf:me/gated').startswith('me/gated is gated; ask for access on its page')
  monkeypatch.setenv('HF_TOKEN', TOKEN)
  for source in ('hf:me/mine', 'hf:me/gated'):
    np.testing.assert_array_equal(head(source), head(str(folder)))
  assert not hub.leaked
  assert said('hf:me/nothing').endswith('check the name, or see what its token may do.')


@pytest.mark.parametrize(
  ('source', 'text'),
  [
    ('hf:vit', "'hf:vit' names no repository of the Hub; write hf:org/name"),
    ('hf:me/a--b', 'me/a--b is no name on the Hub ('),
    ('hf:me/vit:x.npz', 'me/vit has no file x.npz; '),
    ('hf:me/vit:none', 'hf:me/vit:none has no .safetensors or .npz file; check the name'),
    ('hf:me/vit:a.bin', 'a.bin is a PyTorch pickle (it could run code)'),
    (
      'hf:me/old',
      'but pytorch_model.bin, which is not downloaded; `hf download me/old --local-dir old` does so',
    ),
    ('hf:me/two', 'hf:me/two has 2 checkpoints (a.npz, b.npz); name one of them: hf:me/two:a.npz.'),
    ('me/nothing', 'There is no checkpoint me/nothing; '),
  ],
)
def test_what_is_not_there_is_said_in_one_sentence(source, text, hub, folder):
  hub.add('models/me/vit', folder)
  hub.add('models/me/old', {'config.json': b'{}', 'pytorch_model.bin': b'pickle', 'flax_model.msgpack': b''})
  hub.add('models/me/two', {'a.npz': b'', 'b.npz': b''})
  assert text in said(source)
  assert not hub.asked('.bin')


def test_without_the_library_the_extra_is_named(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  for source in ('hf:me/vit', 'me/vit', 'vit_mine_patch4_8.in_test'):
    assert "needs the package huggingface_hub: pip install 'vit_jax[huggingface]'" in said(source)
