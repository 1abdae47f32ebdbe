"""Images that grow during training: the size of each step, sums over steps, a run that goes on with it."""

import dataclasses
import json
import shutil

import pytest

from vit_jax import config as c
from vit_jax.errors import UserError
from vit_jax.training import loop
from vit_jax.training.progressive_resizing import Growth

DATA = c.DataConfig(
  image_size=(8, 16), progressive_resizing=(('25%', 4), ('6 steps', 6)), crop='random', resize=12, padding=4
)
SMALL = c.ViTConfig(variant='custom', patch=2, width=16, mlp_dim=16, depth=1, heads=2)
CONFIG = c.Config(total='12 steps', batch_size=8, data=DATA, model=SMALL)
SIZES = [(4, 8)] * 3 + [(6, 12)] * 3 + [(8, 16)] * 6


def test_every_step_has_its_size():
  growth = Growth(CONFIG, examples=100)
  assert [growth.size(step) for step in range(12)] == SIZES
  assert growth.size(12) == growth.size(99) == (8, 16)
  assert growth.ahead(0) == growth.sizes == ((4, 8), (6, 12), (8, 16))
  assert growth.ahead(3) == growth.ahead(5) == ((6, 12), (8, 16))
  assert growth.ahead(12) == ((8, 16),)


def test_resize_and_padding_keep_their_proportion():
  growth = Growth(CONFIG, examples=100)
  options = [(data.image_size, data.resize, data.padding) for data in map(growth.data, (0, 3, 6))]
  assert options == [((4, 8), 6, 2), ((6, 12), 9, 3), ((8, 16), 12, 4)]
  assert growth.data(6) == DATA


def test_without_growth_nothing_changes():
  data = dataclasses.replace(DATA, progressive_resizing=())
  growth = Growth(dataclasses.replace(CONFIG, data=data), examples=100)
  assert growth.sizes == ((8, 16),) and growth.data(0) == data


def test_sums_over_steps():
  before = Growth(CONFIG, examples=100).sum_before(lambda size: size[0] ** 2)
  assert [before(step) for step in range(13)] == [sum(h * h for h, _ in SIZES[:step]) for step in range(13)]


@pytest.mark.parametrize(
  ('grow', 'said'),
  [
    ((('50%', 4), ('25%', 6)), 'each duration must be larger'),
    ((('50%', 4), ('100%', 6)), 'each duration must be larger'),
    ((('25%', 6), ('50%', 4)), 'each size must be larger'),
    ((('25%', 8),), 'the last smaller than that of the whole run, 12 steps at 8 pixels'),
    ((('25%', 5),), r'config.data.grow, \(5, 10\) does not divide into patches of 2'),
    ((('0%', 4),), "config.data.grow is '0%'; it must be more than nothing"),
    ((('quarter', 4),), "config.data.grow: 'quarter' is not a duration"),
    ((('25%', 0),), 'config.data.grow has 0 pixels'),
  ],
)
def test_stages_that_make_no_sense_are_said(grow, said):
  config = dataclasses.replace(CONFIG, data=dataclasses.replace(DATA, grow=grow))
  with pytest.raises(UserError, match=said):
    Growth(c.from_config_dict(c.as_json(config)), examples=100)


def test_a_mixer_does_not_grow():
  mixer = c.ViTConfig(variant='custom', patch=2, width=16, mlp_dim=16, depth=1, tokens_mlp_dim=8, pool='gap')
  with pytest.raises(UserError, match='An MLP-Mixer works at one resolution'):
    Growth(dataclasses.replace(CONFIG, model=mixer), examples=100)


def test_a_run_grows_and_goes_on_at_the_right_size(tmp_path, capsys):
  """Resumed behind a change of size, it ends as the run that was left alone."""
  config = dataclasses.replace(
    CONFIG,
    data=c.DataConfig(source='digits', image_size=(8, 8), progressive_resizing=(('2 steps', 4),)),
    total='4 steps',
    model=dataclasses.replace(SMALL, dropout=0.1),
    checkpoint=c.CheckpointConfig(every='1 steps', keep=9),
    log_every='1 steps',
  )
  loop.train(config, tmp_path / 'whole')
  values = lambda workdir: [
    {name: value for name, value in json.loads(line).items() if not name.startswith('perf/')}
    for line in (workdir / 'metrics.jsonl').read_text().splitlines()
  ]
  whole = values(tmp_path / 'whole')
  assert [line['step'] for line in whole] == [1, 2, 3, 4]
  workdir = tmp_path / 'resumed'
  shutil.copytree(tmp_path / 'whole', workdir)
  shutil.rmtree(workdir / 'checkpoints' / '4')
  loop.train(config, workdir)
  assert 'Resuming from step 3' in capsys.readouterr().out
  assert values(workdir) == whole
