"""The schema of options: types, rules, tagged unions, placeholders, and overrides by real flags."""

import dataclasses
import sys
from typing import Annotated, Literal

import ml_collections
import pytest
from absl import flags
from ml_collections import config_flags

from vit_jax import config as c
from vit_jax import options
from vit_jax.foundation.errors import UserError
from vit_jax.foundation.registry import Registry
from vit_jax.options import RESUMABLE, Amount, Between, Count, ImageSize, Positive, Rate, Regex


class Fruit:
  """What the two kinds of the union have in common."""


@dataclasses.dataclass(frozen=True)
class Apple(Fruit):
  colour: Literal['red', 'green'] = 'red'
  seeds: Amount = 5
  weight: Positive | None = None


@dataclasses.dataclass(frozen=True)
class Banana(Fruit):
  bend: Annotated[float, Between(0, 1)] = 0.5
  weight: Positive | None = None
  spots: Annotated[bool, RESUMABLE] = False
  peel: str = 'yellow'

  def check(self, path: str) -> None:
    if self.bend == 1 and self.weight == 1:
      raise UserError(f'{path} is a circle.')


FRUIT: Registry[Fruit] = Registry('fruit', {'apple': f'{__name__}:Apple', 'banana': f'{__name__}:Banana'})


@dataclasses.dataclass(frozen=True)
class Box:
  height: Count = 3
  open: bool = False


@dataclasses.dataclass(frozen=True)
class Basket:
  size: ImageSize = (3, 4)
  share: Rate = 0.0
  pattern: Regex = '^a'
  names: tuple[Annotated[str, options.regex], ...] = ()
  stages: tuple[tuple[str, Count], ...] = ()
  level: Literal[1, 3] | None = None
  fruit: Annotated[Fruit, FRUIT] = Apple()
  more: Annotated[dict[str, Fruit], FRUIT] = dataclasses.field(default_factory=dict)
  box: Annotated[Box, RESUMABLE] = Box()


def read(**values) -> Basket:
  return options.from_dict(Basket, values, 'basket')


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    ({'size': 7}, {'size': (7, 7)}),
    ({'share': 0}, {'share': 0.0}),
    ({'names': ['a', 'b']}, {'names': ('a', 'b')}),
    ({'stages': [['x', 1], ('y', 2)]}, {'stages': (('x', 1), ('y', 2))}),
    ({'level': None}, {'level': None}),
    ({'fruit': {'name': 'banana', 'bend': 1}}, {'fruit': Banana(bend=1.0)}),
    ({'fruit': {'name': 'apple', 'weight': 2}}, {'fruit': Apple(weight=2.0)}),
    ({'more': {'b': {'name': 'apple', 'seeds': 0}}}, {'more': {'b': Apple(seeds=0)}}),
    ({'box': {'height': 1}}, {'box': Box(height=1)}),
  ],
)
def test_values_become_those_of_the_fields_types(values, expected):
  basket = read(**values)
  assert basket == Basket(**expected)
  assert options.from_dict(Basket, options.as_dict(basket)) == basket
  assert all(type(getattr(basket, name)) is type(value) for name, value in expected.items())


@pytest.mark.parametrize(
  ('values', 'said'),
  [
    ({'size': (1, 2, 3)}, 'basket.size is (1, 2, 3), which is not of type tuple[int, int].'),
    ({'size': 0}, 'basket.size is 0; it must be at least 1.'),
    ({'share': True}, 'basket.share is True, which is not of type float.'),
    ({'share': 1}, 'basket.share is 1.0; it must be between 0 and 0.999.'),
    ({'share': float('nan')}, 'basket.share is nan; it must be between'),
    ({'pattern': '('}, "basket.pattern is '('; it must be a regular expression"),
    ({'names': ['a', '*']}, "basket.names is '*'; it must be a regular expression"),
    ({'names': 'ab'}, "basket.names is 'ab', which is not of type tuple[str, ...]."),
    ({'stages': [['x', 0]]}, 'basket.stages is 0; it must be at least 1.'),
    ({'level': 2}, 'basket.level is 2; choose one of [1, 3].'),
    ({'box': {'open': 1}}, 'basket.box.open is 1, which is not of type bool.'),
    ({'box': {'heigt': 1}}, 'basket.box.heigt is not an option; did you mean basket.box.height?'),
    ({'xyz': 3}, 'basket.xyz is not an option; it has size, share, pattern, names'),
    ({'fruit': 'apple'}, "basket.fruit is 'apple'; it must be a section with the option 'name'."),
    ({'fruit': {'name': 'aple'}}, "basket.fruit.name is 'aple'; did you mean 'apple'?"),
    ({'fruit': {'name': 'kiwi'}}, "basket.fruit.name is 'kiwi'; choose one of ['apple', 'banana']."),
    (
      {'fruit': {'name': 'apple', 'bend': 0.9}},
      "basket.fruit.bend is an option of the fruit 'banana', and basket.fruit.name is 'apple'; leave it out, "
      "or choose 'banana'.",
    ),
    ({'more': [1]}, 'basket.more is [1]'),
    ({'fruit': {'name': 'banana', 'bend': 1, 'weight': 1}}, 'basket.fruit is a circle.'),
  ],
)
def test_a_wrong_value_is_refused_in_one_sentence(values, said):
  with pytest.raises(UserError) as raised:
    read(**values)
  assert said in str(raised.value) and '\n' not in str(raised.value)


def test_a_config_dict_has_a_placeholder_for_every_option_of_the_other_kinds():
  values = options.to_config_dict(Basket(more={'b': Banana()}))
  assert values.is_locked
  assert {*values.fruit} == {*values.more.b} == {'name', 'colour', 'seeds', 'weight', 'bend', 'spots', 'peel'}
  assert values.fruit.bend is None and values.more.b.seeds is None
  values.fruit.bend = 1  # of the type that it will have
  assert values.fruit.bend == 1.0
  with pytest.raises(TypeError):
    values.more.b.seeds = 'many'
  with pytest.raises(TypeError):
    values.level = 'high'


def test_a_default_of_the_kind_that_the_file_had_chosen_may_stay():
  """The command line changes the tag only; what the file's kind has at its default is passed over."""
  values = options.to_config_dict(Basket(fruit=Apple(weight=2.0)))
  values.fruit.name = 'banana'
  assert options.from_dict(Basket, values.to_dict()).fruit == Banana(weight=2.0)
  values.fruit.seeds = 6
  with pytest.raises(UserError, match=r"fruit\.seeds is an option of the fruit 'apple'"):
    options.from_dict(Basket, values.to_dict())


def test_a_section_of_a_union_is_written_with_its_tag():
  written = options.as_dict(Basket(more={'b': Banana()}))
  assert written['fruit'] == {'name': 'apple', 'colour': 'red', 'seeds': 5, 'weight': None}
  assert next(iter(written['more']['b'])) == 'name'
  flat = options.flatten(Basket(more={'b': Banana()}))
  assert flat['fruit.name'] == 'apple' and flat['more.b.bend'] == 0.5 and flat['size'] == (3, 4)


def test_resumable_options_are_named_with_their_sections():
  assert set(options.resumable(Basket)) == {'fruit.spots', 'more.spots', 'box.'}
  # The names of a dict's sections are not known, so that no option inside one may be RESUMABLE.
  assert not [name for name in options.resumable(c.Config) if name.startswith('evaluators')]


def test_a_kind_is_registered_once_and_found_by_its_name():
  registry: Registry[Fruit] = Registry('fruit', {'apple': f'{__name__}:Apple'})
  registry.register('banana', Banana)
  registry.register('banana', Banana)
  assert registry.names() == ('apple', 'banana')
  assert registry['apple'] is Apple and registry.name_of(Apple) == 'apple' and registry['banana'] is Banana
  with pytest.raises(ValueError, match="the fruit 'apple' is registered already"):
    registry.register('apple', Banana)
  with pytest.raises(UserError, match=r"There is no fruit 'banna'; did you mean 'banana'\?"):
    registry['banna']
  with pytest.raises(ValueError, match='Box is not registered as a fruit'):
    registry.name_of(Box)


CONFIG = """
from vit_jax.config import *

def get_config():
  return to_config_dict(Config(
    model=ViTConfig(variant='custom', patch=4, width=32, mlp_dim=48, depth=2, heads=4),
    data=DataConfig(source='digits', image_size=(8, 8)),
    evaluators={'test': ClassificationEvaluatorConfig(split='test')},
  ))
"""


@pytest.fixture
def config_with(tmp_path, monkeypatch):
  """A function: flags -> the config of a file, overridden as on a command line."""
  path = tmp_path / 'config.py'

  def parsed(*arguments: str, text: str = CONFIG) -> c.Config:
    path.write_text(text)
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file('config', flag_values=values)
    monkeypatch.setattr(sys, 'argv', ['program', f'--config={path}', *arguments])
    values(sys.argv)
    assert isinstance(holder.value, ml_collections.ConfigDict)
    return c.from_config_dict(holder.value)

  return parsed


def test_flags_override_options_of_every_type(config_with):
  config = config_with(
    '--config.model.depth=3',
    '--config.model.stem_blocks=(3,4,9)',
    '--config.model.layer_scale=1',
    '--config.model.class_token=true',
    '--config.model.pool=map',
    '--config.data.image_size=16',
    '--config.data.max_per_class=5',
    '--config.data.mixture=(("digits",1),("digits:test",2.5))',
    '--config.evaluators.test.source=digits',
    '--config.evaluators.test.batch_size=7',
    '--config.optimizer.freeze=("^stem",)',
    '--config.checkpoint.best=test/loss',
  )
  assert config.model == c.ViTConfig(
    'custom', 4, 32, 48, 3, 4, stem_blocks=(3, 4, 9), layer_scale=1.0, class_token=True, pool='map'
  )
  assert config.data.image_size == (16, 16) and config.data.max_per_class == 5
  assert config.data.mixture == (('digits', 1.0), ('digits:test', 2.5))
  assert config.evaluators['test'] == c.ClassificationEvaluatorConfig(source='digits', batch_size=7)
  assert config.optimizer.freeze == ('^stem',) and config.checkpoint.best == 'test/loss'


VIT_OF_A_NAME = CONFIG.replace(
  "variant='custom', patch=4, width=32, mlp_dim=48, depth=2, heads=4", "variant='B/16', dtype='bfloat16'"
)
CHOICES = {
  'model': (
    ('--config.model.name=resnet', '--config.model.variant=custom', '--config.model.blocks=(1,2)'),
    c.ResNetConfig('custom', blocks=(1, 2), dtype='bfloat16'),
  ),
  'optimizer': (
    ('--config.optimizer.name=lion', '--config.optimizer.b2=0.98'),
    c.OptimizerConfig(name='lion', b2=0.98),
  ),
  'evaluators': (
    ('--config.evaluators.test.type=fewshot', '--config.evaluators.test.shots=(1,10)'),
    {'test': c.FewShotEvaluatorConfig(split='test', shots=(1, 10))},
  ),
  'objective': (
    (
      *('--config.objective.name=masked_patches', '--config.objective.label_smoothing=0.1'),
      *('--config.model.pool=none', '--config.model.mask_token=true'),
      *('--config.evaluators.test.type=fewshot', '--config.evaluators.test.pool=gap'),
    ),
    c.MaskedPatchesObjective(label_smoothing=0.1),
  ),
}


@pytest.mark.parametrize('section', CHOICES)
def test_a_flag_chooses_another_kind(config_with, section):
  arguments, expected = CHOICES[section]
  assert getattr(config_with(*arguments, text=VIT_OF_A_NAME), section) == expected


@pytest.mark.parametrize(
  ('arguments', 'said'),
  [
    (('--config.model.name=resnet',), r"depth is an option of the model 'vit', and .*name is 'resnet'"),
    (('--config.optimizer.name=lion', '--config.optimizer.momentum=0.9'), "'lion' does not take momentum"),
    (('--config.evaluators.test.shots=(1,10)',), "shots is an option of the evaluator 'fewshot'"),
  ],
)
def test_what_another_kind_does_not_have_is_not_silently_dropped(config_with, arguments, said):
  with pytest.raises(UserError, match=said):
    config_with(*arguments)


def test_another_model_brings_its_own_defaults(config_with):
  """ViT's norm_epsilon and variant are not those of a ResNet; an epsilon that the file sets stays."""
  default = CONFIG.replace("variant='custom', patch=4, width=32, mlp_dim=48, depth=2, heads=4", '')
  assert config_with('--config.model.name=resnet', text=default).model == c.ResNetConfig()
  assert config_with(text=default).model == c.ViTConfig()
  given = default.replace('ViTConfig()', 'ViTConfig(norm_epsilon=1e-3)')
  assert config_with('--config.model.name=resnet', text=given).model == c.ResNetConfig(norm_epsilon=1e-3)
