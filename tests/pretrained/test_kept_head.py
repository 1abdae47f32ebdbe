"""A head that is kept: its rows are put where the run's data has their classes."""

import numpy as np
import pytest
import tiny

from vit_jax import config as c
from vit_jax.data.preprocess import Preprocess
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import kept_head
from vit_jax.pretrained.base import FORMATS, Pretrained
from vit_jax.training import initialization
from vit_jax.training.run import Dataset, Run

NAMES = ('ant', 'bee', 'cat', 'dog', 'elk')
MODEL = tiny.options(pool='token', activation='gelu', head_bias=-3.0)


def written(kind, folder):
  """(path, parameters) of a checkpoint with these classes, as a format has them."""
  architecture = Architecture(MODEL.resolved(), (8, 8), 3, len(NAMES))
  _, params = tiny.build(architecture.model, image_size=(8, 8), num_classes=len(NAMES))
  pretrained = Pretrained(architecture, numpy(params), Preprocess((8, 8), 3), NAMES)
  path = folder / ('x.npz' if kind == 'npz' else kind)
  FORMATS[kind]().write(pretrained, path)
  return path, pretrained.params


def numpy(tree):
  return {name: numpy(leaf) if isinstance(leaf, dict) else np.asarray(leaf) for name, leaf in tree.items()}


def started(path, names, **init):
  """(parameters of step 0, what was said)."""
  config = c.Config(
    total='2 steps',
    batch_size=8,
    model=MODEL,
    init=c.InitConfig(checkpoint=str(path), reinitialise=(), **init),
    data=c.DataConfig(image_size=(8, 8)),
  )
  run = Run(config, Dataset(16, names))
  arrays, text = initialization.read_initial(run.config, run.architecture, names)
  return initialization.initial_state(run.program, 0, arrays).params, text


def by_hand(params, head, names):
  """(kernel, bias) for classes, those that the checkpoint does not have as a head begins."""
  kernel, bias = params[head]['kernel'], params[head]['bias']
  known = [NAMES.index(name) if name in NAMES else None for name in names]
  kernels = [np.zeros(len(kernel)) if k is None else kernel[:, k] for k in known]
  return np.stack(kernels, axis=1), np.array([-3.0 if k is None else bias[k] for k in known])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'names', 'said'),
  [
    ('run', ('elk', 'dog', 'cat', 'bee', 'ant'), 'matched with the classes of the data by name.'),
    ('vit', ('elk', 'ant', 'gnu'), '1 of 3 classes are new (gnu) and begin anew; 3 outputs have no class'),
    ('timm', ('dog', 'ant'), '3 outputs have no class in the data (bee, cat, elk)'),
    ('npz', NAMES, 'by number, since only one of the two names them'),
  ],
)
def test_each_class_begins_with_the_row_of_its_name(kind, names, said, tmp_path):
  path, theirs = written(kind, tmp_path)
  params, text = started(path, names)
  assert said in text
  kernel, bias = by_hand(theirs, 'head', names)
  np.testing.assert_array_equal(params['head']['kernel'], kernel.astype(np.float32))
  np.testing.assert_array_equal(params['head']['bias'], bias.astype(np.float32))
  np.testing.assert_array_equal(params['patch_embedding']['kernel'], theirs['patch_embedding']['kernel'])


def test_rows_of_both_heads_are_moved_and_nothing_else():
  """Outputs beyond the classes get the rows that no class has."""
  rng, heads = np.random.default_rng(0), ('head', 'distillation_head')
  theirs = {
    name: {'kernel': rng.normal(size=(4, 5)), 'bias': rng.normal(size=5)} for name in (*heads, 'other')
  }
  architecture = Architecture(MODEL.resolved(), (8, 8), 3, len(NAMES))
  pretrained = Pretrained(architecture, theirs, Preprocess((8, 8), 3), NAMES)
  for order in ([4, 1], [4, 1, 0, 2, 3]):
    moved = kept_head.matched(pretrained, ('elk', 'bee'), len(order), what='It', remedy='wait').params
    for name in heads:
      np.testing.assert_array_equal(moved[name]['kernel'], theirs[name]['kernel'][:, order])
      np.testing.assert_array_equal(moved[name]['bias'], theirs[name]['bias'][order])
    np.testing.assert_array_equal(moved['other']['kernel'], theirs['other']['kernel'])


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'names', 'said'),
  [
    (
      'run',
      tuple('vwxyz'),
      r'The head of .* has the classes ant, bee, cat, …, and the data 5 others .*classes=number',
    ),
    (
      'npz',
      NAMES[:4],
      r'has 5 classes without names, and the data 4 others .*leave config\.init\.reinitialise out',
    ),
  ],
)
def test_a_head_of_other_classes_is_refused_with_the_remedy(kind, names, said, tmp_path):
  path, theirs = written(kind, tmp_path)
  with pytest.raises(UserError, match=said):
    started(path, names)
  if kind == 'run':
    params, text = started(path, names, classes='number')
    assert 'whatever their names' in text
    np.testing.assert_array_equal(params['head']['kernel'], theirs['head']['kernel'])
