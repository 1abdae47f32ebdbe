"""Every file in configs/ builds, validates and shape-evaluates: model, state and one training step."""

import importlib.util
import pathlib

import jax
import pytest

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.errors import UserError
from vit_jax.models import flops
from vit_jax.parallel.mesh import make_mesh
from vit_jax.training.step import make_train_step

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
PAPER = ['imagenet21k', 'jft', 'imagenet2012']
ARGUMENTS = {
  'folder': ['/path/to/images'],
  'finetune': [
    'b16,cifar10',
    'l16,imagenet2012',
    'ti16,oxford_iiit_pet',
    'b32,folder:/images',
    's16,cifar100',
  ],
  'vtab': ['l16,clevr_count', 'b32,dsprites_location,val'],
  'vit_ti16': ['imagenet21k', 'imagenet2012'],
  'vit_s16': ['imagenet21k', 'imagenet2012'],
  'vit_s32': ['imagenet21k', 'imagenet2012'],
  'vit_h14': ['jft', 'imagenet2012'],
  'vit_b16': ['imagenet21k', 'augreg', 'jft', 'imagenet2012'],
  'vit_b32': ['imagenet21k', 'augreg', 'jft', 'imagenet2012'],
  'vit_l16': ['imagenet21k', 'augreg', 'jft', 'imagenet2012'],
  'masked_patch': [*PAPER, 'cifar10'],
  'vit_s16_i1k': ['300'],
  'quickstart': [],
  'cifar10_scratch': ['augment,grow'],
  'position': ['rotary,gap', 'relative_query,token,small'],
  'axial': ['axial,patch2,small'],
  'depth': ['12'],
  'heads': ['8,small'],
  'locality': ['locality,grow', 'plain,small'],
  'mlp': ['768'],
  'patch': ['2'],
  'width': ['256'],
  'resnet': ['vit', 'resnet,small'],
  'hybrid': ['hybrid,small', 'r50x1,jft', 'r50+b16,jft'],
  'pooling': ['gap,3e-4', 'token,8e-4,small'],
}
CASES = [
  (path, argument)
  for path in sorted(CONFIGS.rglob('*.py'))
  for argument in [None, *ARGUMENTS.get(path.stem, PAPER)]
]


def load(path: pathlib.Path, argument: str | None) -> c.Config:
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return c.from_config_dict(module.get_config() if argument is None else module.get_config(argument))


@pytest.mark.parametrize(('path', 'argument'), CASES, ids=[f'{p.stem}:{a}' for p, a in CASES])
def test_config(path, argument):
  config = load(path, argument)
  mesh = make_mesh(config.mesh)
  program = make_train_step(config, mesh, num_classes=config.data.num_classes or 10, examples=303_000_000)
  state, metrics = jax.eval_shape(program.step, program.state, program.batch)
  assert jax.tree.structure(state) == jax.tree.structure(program.state)
  assert metrics['train/loss'].shape == ()
  assert path.stem in path.read_text(), 'the header gives the command'


@pytest.mark.parametrize('size', ['', ',small'])
@pytest.mark.parametrize('name', ['resnet', 'hybrid'])
def test_equal_flops(name, size):
  """As the headers of configs/ablations/ say, within 5 %."""
  vit, other = (
    flops.forward_flops(
      load(CONFIGS / 'ablations' / f'{file}.py', argument + size).model,
      image_size=(32, 32),
      channels=3,
      num_classes=10,
    )
    for file, argument in (('resnet', 'vit'), (name, name))
  )
  assert other / vit == pytest.approx(1, abs=0.05)


def test_the_papers_numbers():
  config = load(CONFIGS / 'vit_l16.py', 'imagenet21k')
  assert config.total == '90 epochs' and config.batch_size == 4096
  assert config.schedule.learning_rate == 1e-3 and config.schedule.end_value == 1e-5
  assert config.optimizer.weight_decay == 0.03 and config.model.dropout == 0.1
  assert config.loss.name == 'sigmoid' and config.model.head_bias == -10
  assert load(CONFIGS / 'vit_h14.py', 'jft').schedule.learning_rate == 3e-4
  resnet = load(CONFIGS / 'ablations' / 'hybrid.py', 'r152x2,jft')
  assert resnet.schedule.learning_rate == 6e-4 and resnet.model.norm_epsilon == 1e-5
  assert load(CONFIGS / 'finetune.py', 'b16,imagenet2012').total == '20000 steps'
  config = load(CONFIGS / 'vtab.py', 'b16,dmlab')
  assert config.total == '2500 steps' and config.batch_size == 512
  assert config.schedule.learning_rate == 0.01 and config.data.image_size == (384, 384)


@pytest.mark.parametrize(
  ('name', 'source', 'level'),
  [
    ('vit_ti16', 'imagenet21k', 'none'),
    ('vit_s32', 'imagenet21k', 'none'),
    ('vit_s16', 'imagenet21k', 'light1'),
    ('vit_b32', 'augreg', 'light1'),
    ('vit_b16', 'augreg', 'medium1'),
    ('vit_l16', 'augreg', 'strong1'),
    ('vit_b16', 'imagenet21k', 'none'),
  ],
)
def test_augregs_levels(name, source, level):
  config = load(CONFIGS / f'{name}.py', source)
  assert config.data.augment == level and config.data.mixup is None
  assert config.total == ('90 epochs' if (name, source) == ('vit_b16', 'imagenet21k') else '300 epochs')


@pytest.mark.parametrize(
  ('build', 'said'),
  [
    (lambda: recipes.pretraining('H/14', 'imagenet21k'), 'did not train H/14 on ImageNet-21k'),
    (lambda: recipes.pretraining('L/32', 'augreg'), 'AugReg did not train L/32 on ImageNet-21k'),
    (lambda: recipes.pretraining('S/16', 'jft'), 'did not train S/16 on JFT-300M'),
    (lambda: recipes.pretraining('B/16', 'imagenet'), 'choose one of imagenet21k'),
    (lambda: recipes.finetuning('B/16', 'cifar'), 'did you mean cifar10'),
  ],
)
def test_what_was_not_published_is_said(build, said):
  with pytest.raises(UserError, match=said):
    build()


def test_what_an_ablation_changes():
  changed = recipes.ablation('x', 'wide,small', {'wide': {'model.width': 96}})
  config = c.from_config_dict(changed)
  assert config.model.width == 96 and config.total == '1 epochs'  # its own size before that of 'small'
  assert c.from_config_dict(recipes.ablation('x', '', {})) == recipes.cifar10()
  with pytest.raises(UserError, match="has no 'wdie'; choose from small, wide"):
    recipes.ablation('x', 'wdie', {'wide': {}})
