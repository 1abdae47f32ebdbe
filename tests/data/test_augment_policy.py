import pytest

from vit_jax import options
from vit_jax.data import augment_policy
from vit_jax.data.augment_policy import Step, mixup, parse
from vit_jax.data.config import DataConfig
from vit_jax.foundation.errors import UserError


def test_levels_are_those_of_augreg():
  expected = {
    'none': ((), 0.0),
    'light1': ((2, 0), 0.0),
    'light2': ((2, 10), 0.2),
    'medium1': ((2, 15), 0.2),
    'medium2': ((2, 15), 0.5),
    'strong1': ((2, 20), 0.5),
    'strong2': ((2, 20), 0.8),
  }
  assert set(augment_policy.LEVELS) == set(expected)
  for level, (numbers, alpha) in expected.items():
    assert parse(level) == ((Step('randaugment', numbers),) if numbers else ())
    assert mixup(level) == alpha


def test_several_augmentations_keep_their_order():
  steps = parse('medium1 |erase( 0.25 )| 3augment')
  assert steps == (Step('randaugment', (2, 15)), Step('erase', (0.25,)), Step('3augment'))
  assert mixup('medium1 | erase(0.25)') == 0.2 and mixup('randaugment(2,15)') == 0


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('medium', "'medium' is no augmentation; did you mean 'medium"),
    ('randaugment', 'is given 0 numbers, and is written randaugment(layers, magnitude)'),
    ('randaugment(2.5,15)', "the layers of 'randaugment' is 2.5; it must be a whole number between 1 and 16"),
    ('randaugment(2,31)', 'must be a number between 0 and 30'),
    ('erase(often)', "'often', which is no number"),
    ('erase(nan)', 'must be a number between 0 and 1'),
    ('jitter(0.4) |', 'is not written as an augmentation'),
  ],
)
def test_wrong_notation_names_the_option_and_the_mistake(text, said):
  with pytest.raises(UserError) as error:
    options.from_dict(DataConfig, {'augment': text}, 'config.data')
  assert str(error.value).startswith(f'config.data.augment is {text!r}; ') and said in str(error.value)
