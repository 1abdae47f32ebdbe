"""The documentation's site: its tutorials run as they stand, its links lead somewhere, and it needs no network."""

import html.parser
import json
import os
import pathlib
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest
import released_files
import run_page
import tiny
from hub_emulator import running
from PIL import Image
from processes import HUNG

from vit_jax.cli import COMMANDS
from vit_jax.data.preprocess import Preprocess
from vit_jax.models.base import Architecture
from vit_jax.options import documentation
from vit_jax.pretrained.base import Pretrained

ROOT = pathlib.Path(__file__).parents[1]
TUTORIALS = {page.stem: page for page in sorted((ROOT / 'docs/tutorials').glob('*.md'))}


@pytest.fixture
def reader(tmp_path):
  """A folder with photos, and a Hub that has a small model by the names that the tutorials use."""
  rng = np.random.default_rng(0)
  for name in ('daisy', 'tulip'):
    (tmp_path / 'photos' / name).mkdir(parents=True)
    for number in range(1, 13):
      pixels = rng.integers(0, 120, (40, 50, 3)) + (100 if name == 'tulip' else 0)
      Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / 'photos' / name / f'{number}.jpg')
  Image.effect_noise((60, 50), 50).convert('RGB').save(tmp_path / 'photo.jpg')
  (tmp_path / 'launch').symlink_to(ROOT / 'launch')
  script = tmp_path / 'bin' / 'vit_jax'
  script.parent.mkdir()
  script.write_text(f'#!/bin/sh\nexec {sys.executable} -m vit_jax "$@"\n')
  script.chmod(0o755)

  architecture = Architecture(tiny.options(patch=32), (64, 64), 3, 0)
  params = tiny.build(tiny.options(patch=32), image_size=(64, 64), num_classes=0)[1]
  preprocess = Preprocess((64, 64), antialias=True, method='bicubic', shorter=64)
  released_files.write_folder(Pretrained(architecture, params, preprocess), tmp_path / 'model', 'timm')
  with running(tmp_path / 'cache') as hub:
    hub.add('models/timm/vit_small_patch14_reg4_dinov2.lvd142m', tmp_path / 'model')
    yield tmp_path


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize('name', TUTORIALS)
def test_a_tutorial_runs_as_it_stands(name, reader):
  environment = os.environ | {
    'PATH': f'{reader / "bin"}:{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
    'PYTHONPATH': f'.:{ROOT}',
    'XLA_FLAGS': '',
  }
  command = [sys.executable, ROOT / 'tests/run_page.py', TUTORIALS[name]]
  result = subprocess.run(command, cwd=reader, env=environment, capture_output=True, text=True, timeout=HUNG)
  assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_little_of_the_tutorials_is_left_out():
  blocks = [block for page in TUTORIALS.values() for block in run_page.blocks(page)]
  left_out = [block.code for block in blocks if not block.is_run]
  assert len(blocks) > 25 and len(left_out) <= 6
  named = {word for block in left_out for word in block.split() if word in COMMANDS}
  assert named <= {'serve', 'plan', 'predict'}


class Page(html.parser.HTMLParser):
  """What a page of HTML defines, links to and loads."""

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.names: set[str] = set()
    self.links: set[str] = set()
    self.loaded: set[str] = set()
    self.feed(path.read_text())

  def handle_starttag(self, tag, attrs):
    values = {key: value or '' for key, value in attrs}
    self.names |= {values[key] for key in ('id', 'name') if key in values}
    if tag == 'a' and 'href' in values:
      self.links.add(values['href'])
    if tag in ('img', 'script') and 'src' in values:
      self.loaded.add(values['src'])
    if tag == 'link' and values.get('rel') in ('stylesheet', 'icon', 'preconnect'):
      self.loaded.add(values['href'])


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  """The pages of the built site, by their paths in it."""
  pytest.importorskip('mkdocs')
  folder = tmp_path_factory.mktemp('site')
  environment = os.environ | {'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'}
  result = subprocess.run(
    [ROOT / '.ci/docs', folder], env=environment, capture_output=True, text=True, timeout=HUNG
  )
  assert result.returncode == 0, result.stderr  # a warning is an error
  return folder, {str(path.relative_to(folder)): Page(path) for path in folder.rglob('*.html')}


@pytest.mark.nightly
@pytest.mark.slow
def test_site_leads_nowhere_that_is_not_there_and_loads_nothing_from_elsewhere(site):
  folder, pages = site
  for place, page in pages.items():
    if place == '404.html':  # its links are from the root of a server
      continue
    for link in page.links | page.loaded:
      target = urllib.parse.urlsplit(link)
      if target.scheme or link.startswith('//'):
        assert link in page.links, f'{place} loads {link}'
        continue
      path = os.path.normpath(os.path.join(os.path.dirname(place), urllib.parse.unquote(target.path)))
      path = path if target.path else place
      assert (folder / path).is_file(), f'{place}: {link}'
      fragment = urllib.parse.unquote(target.fragment)
      assert not fragment or fragment in pages[path].names or fragment.startswith('__'), f'{place}: {link}'


@pytest.mark.slow
def test_site_has_every_command_every_option_and_what_load_takes(site):
  folder, pages = site
  assert {f'commands/{name}.html' for name in COMMANDS} <= pages.keys()
  options = (folder / 'options.html').read_text()
  for option in documentation.documented():
    assert f'<code>--config.{option.name}=' in options, option.name
  assert {'vit_jax.loading.load', 'vit_jax.loaded_model.LoadedModel'} <= pages['api/index.html'].names
  found = json.loads((folder / 'search/search_index.json').read_text())['docs']
  assert any('layer_decay' in item['text'] for item in found)
