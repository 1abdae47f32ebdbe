"""Every file in configs/ is a valid config, and the training step of each kind can be traced; published numbers."""

import dataclasses

import chex
import jax
import pytest
import teachers
import tiny
from config_files import FILES, load

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data.sources import splits
from vit_jax.foundation.errors import UserError
from vit_jax.models.base import Architecture
from vit_jax.pretrained import formats
from vit_jax.training.run import Dataset, Run

PAPER = ['imagenet21k', 'jft', 'imagenet2012']
ARGUMENTS = {
  'folder': ['/path/to/images'],
  'bit': ['jft', 'imagenet21k'],
  'efficientnet_l2': [],
  'finetune': ['b16,cifar10', 'l16,imagenet2012', 'ti16,oxford_iiit_pet', 'b32,folder:/images,paper'],
  'distill': ['ti16,runs/teacher,folder:/images'],
  'vtab': ['l16,clevr_count', 'b32,dsprites_location,val'],
  'vit': ['l16,imagenet21k', 'b16,augreg', 'h14,jft', 'r50x1,jft', 'r50+b16,jft', 's16,imagenet2012'],
  **dict.fromkeys(['vit_ti16', 'vit_s16', 'vit_s32'], ('imagenet21k', 'imagenet2012')),
  **dict.fromkeys(['vit_b16', 'vit_b32', 'vit_l16'], ('imagenet21k', 'augreg', 'jft', 'imagenet2012')),
  'vit_h14': ['jft', 'imagenet2012'],
  'masked_patch': [*PAPER, 'cifar10'],
  'mae': ['b16', 'l16,runs/mae'],
  'dino': ['l16', 'small'],
  'moco': ['b16', 'small_simclr'],
  'siglip': ['b16', 'b16,clip', 'digits'],
  'vit_s16_i1k': ['300'],
  'quickstart': [],
  'cifar10_scratch': ['augment,grow'],
  'cifar10_fast': ['long'],
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
CASES = [(path, argument) for path in FILES for argument in [None, *ARGUMENTS.get(path.stem, PAPER)]]
# A step of these files is traced once, by their default: their arguments are numbers, or configs/vit.py's.
NUMBERS = ['depth', 'heads', 'mlp', 'patch', 'width']
NUMBERS += [path.stem for path in FILES if "load(f'vit:" in path.read_text()]
TRACED = [
  (path, argument)
  for path, argument in CASES
  if (argument is None) == (path.stem in NUMBERS or not ARGUMENTS.get(path.stem, PAPER))
  and (path.stem, argument) != ('bit', 'imagenet21k')  # beside 'jft', which is as deep
]
SMALLER = {'R152x4': 'R50x1', 'L2': 'B0'}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_every_config_is_valid_and_its_header_gives_the_command(path):
  for argument in [None, *ARGUMENTS.get(path.stem, PAPER)]:
    assert load(path, argument).total
  assert path.name in path.read_text()


@pytest.mark.nightly(
  but='cifar10_fast|hybrid|locality:locality|position:rel|resnet|bit|dino:small|distill|efficientnet|finetune:b16|mae:b16|masked_patch:cifar10|moco:b16|siglip:b16,clip|vit:h14|vit:r50\\+'
)
@pytest.mark.slow
@pytest.mark.parametrize(
  ('path', 'argument'), [pytest.param(*case, id=f'{case[0].stem}:{case[1]}') for case in TRACED]
)
def test_step_of_every_kind_can_be_traced(path, argument, tmp_path, monkeypatch):
  config = load(path, argument)
  model = config.model.with_unrolled_blocks(False)  # a loop is traced once
  if model.variant in SMALLER:  # whose blocks differ in number and width only
    model = dataclasses.replace(model, variant=SMALLER[model.variant])
  config = dataclasses.replace(config, model=model)
  classes = config.data.num_classes or 10
  monkeypatch.chdir(tmp_path)
  for teacher in config.objective.frozen_models():
    teachers.write(tmp_path / teacher.checkpoint, channels=config.data.channels, num_classes=classes)
  run = Run(config, Dataset(303_000_000, num_classes=classes))
  program = run.program
  state, metrics = jax.eval_shape(program.step, program.state, program.batch, run.frozen.shapes)
  chex.assert_trees_all_equal_shapes_and_dtypes(state, program.state)
  chex.assert_shape(metrics['train/loss'], ())


@pytest.mark.parametrize('size', ['', ',small'])
@pytest.mark.parametrize('name', ['resnet', 'hybrid'])
def test_models_that_an_ablation_compares_cost_the_same(name, size):
  """As the headers of configs/ablations/ say, within 5 %."""
  vit, other = (
    Architecture(load(f'ablations/{file}', argument + size).model, (32, 32), 3, 10).forward_flops()
    for file, argument in (('resnet', 'vit'), (name, name))
  )
  assert other / vit == pytest.approx(1, abs=0.05)


def test_the_papers_numbers_are_on_the_page():
  config = load('vit_l16', 'imagenet21k')
  assert config.total == '90 epochs' and config.batch_size == 4096
  assert config.schedule.learning_rate == 1e-3 and config.schedule.end_value == 1e-5
  assert config.optimizer.weight_decay == 0.03 and config.model.dropout == 0.1
  assert config.objective.loss == 'sigmoid' and config.model.head_bias == -10
  assert config.model.pre_logits_size == 1024
  assert load('vit_h14', 'jft').schedule.learning_rate == 3e-4
  resnet = load('ablations/hybrid', 'r152x2,jft')
  assert resnet.schedule.learning_rate == 6e-4 and resnet.model.norm_epsilon == 1e-5
  bit = load('bit', 'jft')
  assert bit.total == '40 epochs' and bit.model.variant == 'R152x4' and bit.schedule.learning_rate == 0.48
  assert bit.schedule.drops == ('10 epochs', '23 epochs', '30 epochs', '37 epochs')
  assert load('finetune', 'b16,imagenet2012').total == '20000 steps'
  config = load('vtab', 'b16,dmlab')
  assert config.total == '2500 steps' and config.batch_size == 512
  assert config.schedule.learning_rate == 0.01 and config.data.image_size == (384, 384)


@pytest.mark.parametrize(
  ('name', 'source', 'level'),
  [
    ('vit_ti16', 'imagenet21k', 'none'),
    ('vit_s16', 'imagenet21k', 'light1'),
    ('vit_b32', 'augreg', 'light1'),
    ('vit_b16', 'augreg', 'medium1'),
    ('vit_l16', 'augreg', 'strong1'),
    ('vit_b16', 'imagenet21k', 'none'),
  ],
)
def test_augregs_levels_are_those_published(name, source, level):
  config = load(name, source)
  assert config.data.augment == level and config.data.mixup is None
  assert config.total == ('90 epochs' if (name, source) == ('vit_b16', 'imagenet21k') else '300 epochs')


@pytest.mark.parametrize(
  ('name', 'argument', 'said'),
  [
    ('vit_h14', 'imagenet21k', "configs/vit.py:h14 has no recipe 'imagenet21k'; choose one of jft, imagenet"),
    ('vit', 'm16,jft', "configs/vit.py has no size 'm16'; choose one of Ti/16, S/32"),
    ('distill', 'b16,runs/teacher', 'has 2 of three arguments; give student, teacher and data'),
    ('vtab', 'b16,cifar100,val,all', 'has 4 arguments; give model and task, and perhaps val'),
    ('finetune', 'b16,cifar', 'did you mean cifar10'),
    ('finetune', 'folder:/my/photos', 'names no checkpoint; .*finetune:b16,folder:/my/photos'),
    ('finetune', 'b16,/no/such/folder', 'did you mean tfds:/no/such/folder'),
    ('finetune', '/my/dinov2', 'names no data; .*finetune:/my/dinov2,folder:/path/to/images'),
    (
      'finetune',
      'b16,folder:/no/photos,al',
      "'al' is no recipe of fine-tuning; choose one of head, all, slides, text, paper",
    ),
    (
      'finetune',
      'b16,cifar10,4epochs',
      "'4epochs' is no recipe of fine-tuning; choose one of head, all, slides",
    ),
    ('finetune', 'g14,cifar10', "No released checkpoint of 'g14' is known; choose one of B/16"),
  ],
)
def test_recipes_that_were_not_published_are_refused(name, argument, said):
  with pytest.raises(UserError, match=said):
    load(name, argument)


@pytest.mark.parametrize(
  ('data', 'source', 'split'),
  [
    ('imagenet2012', 'tfds:imagenet2012', 'validation'),
    ('cifar10', 'tfds:cifar10', 'test'),
    ('digits', 'digits', 'test'),
    ('folder:/images', 'folder:/images', 'val'),
    ('mine', 'tfds:mine', 'test'),
  ],
)
def test_students_are_evaluated_on_a_split_that_their_data_has(data, source, split, monkeypatch):
  real = splits.first_of
  monkeypatch.setattr(
    splits, 'first_of', lambda wanted, spec: 'test' if 'mine' in spec else real(wanted, spec)
  )
  config = load('distill', f's16,runs/teacher,{data}')
  assert config.data.source == source
  assert {evaluator.split for evaluator in config.evaluators.values()} == {split}


def test_student_of_a_folder_that_is_here_is_evaluated_on_a_split_that_it_has(tmp_path):
  for split in ('train', 'test'):
    (tmp_path / split / 'cat').mkdir(parents=True)
  config = load('distill', f's16,runs/teacher,folder:{tmp_path}')
  assert config.evaluators['val'].split == 'test'


def test_fine_tuning_is_evaluated_on_a_split_that_its_data_has_also_if_its_source_has_no_colon(monkeypatch):
  config = load('finetune', 'b16,digits')
  assert config.data.source == 'digits' and config.init.head == 'probe'
  config = load('finetune', 'b16,digits,paper')
  assert config.data.source == 'digits' and config.total == '2500 steps'
  monkeypatch.setattr(splits, 'first_of', lambda wanted, spec: {'tfds:mine': 'test'}[spec])
  (evaluator,) = load('finetune', 'b16,tfds:mine,paper').evaluators.values()
  assert evaluator.split == 'test'


def test_an_ablation_changes_what_its_words_say():
  changed = recipes.changed_cifar10('x', 'wide,small', {'wide': {'model.width': 96}})
  config = c.from_config_dict(changed)
  assert config.model.width == 96 and config.total == '1 epochs'  # its own size before that of 'small'
  assert c.from_config_dict(recipes.changed_cifar10('x', '', {})) == recipes.cifar10()
  with pytest.raises(UserError, match="has no 'wdie'; choose from small, wide"):
    recipes.changed_cifar10('x', 'wdie', {'wide': {}})


@pytest.mark.parametrize('name', ['options', 'mae', 'moco'])
def test_a_fine_tuning_of_fixed_positions_has_learned_ones_which_are_resized(name, monkeypatch):
  model = getattr(tiny, name)(position='sincos2d')
  monkeypatch.setattr(formats, 'architecture', lambda source: Architecture(model, (32, 32), 3, 10))
  for recipe in ('', ',paper'):
    config = load('finetune', f'runs/mine,digits{recipe}')
    assert config.model.position == 'learned' and config.init.checkpoint == 'runs/mine'
