"""Outputs of a head and classes of data are matched by name; what does not agree is refused or said."""

import numpy as np
import pytest

from vit_jax.foundation import class_matching
from vit_jax.foundation.errors import UserError

NEW = class_matching.NEW


def rows(head, data, **options):
  return class_matching.rows(head, data, **{'outputs': len(head), 'what': 'It', 'remedy': 'choose'} | options)


def test_each_class_keeps_the_output_of_its_name():
  """A class's logit is that of its name, whatever the order and whatever the head has beside it."""
  rng = np.random.default_rng(0)
  for _ in range(20):
    head = [f'class {number}' for number in rng.permutation(12)]
    data = list(rng.permutation(head)[:7])
    logits = rng.standard_normal((3, 12))
    by_hand = np.stack([logits[:, head.index(name)] for name in data], axis=1)
    np.testing.assert_array_equal(logits[:, rows(head, data).rows], by_hand)


@pytest.mark.parametrize(
  ('head', 'data', 'options', 'expected', 'said'),
  [
    ('ab', 'ab', {}, [0, 1], ''),
    ('ba', 'ab', {}, [1, 0], 'It: its outputs are matched with the classes of the data by name.'),
    ('abc', 'ab', {}, [0, 1], '1 outputs have no class in the data (c)'),
    (
      'ab',
      'bcd',
      {'complete': False},
      [1, NEW, NEW],
      '2 of 3 classes are new (c, d) and begin anew; 1 outputs',
    ),
    ('ab', 'cd', {'by': 'number'}, [0, 1], 'by number, whatever their names'),
    ('', 'ab', {'outputs': 2}, [0, 1], 'by number, since only one of the two names them'),
    ('ab', '01', {}, [0, 1], 'by number'),
    ('210', '012', {}, [2, 1, 0], 'by name'),
    (('crane', 'crane'), ('crane', 'crane'), {}, [0, 1], ''),
  ],
)
def test_what_is_moved_or_matched_by_number_is_said(head, data, options, expected, said):
  found = rows(head, data, **options)
  assert found.rows.tolist() == expected
  assert said in ' '.join(found.notes) and bool(found.notes) == bool(said)


@pytest.mark.parametrize(
  ('head', 'data', 'options', 'said'),
  [
    ('ab', 'cd', {}, r'^It has the classes a, b, and the data 2 others \(c, d\); choose\.$'),
    ('ab', 'abc', {}, r'^It does not have 1 of the 3 classes \(c\); choose\.$'),
    ('', 'abc', {'outputs': 4}, r'It has 4 classes without names, and the data 3 others'),
    # In a folder of numbers, '10' stands before '2': neither its place nor its name can be relied on.
    ('', ('0', '1', '10', '2'), {'outputs': 4}, r'It has 4 classes without names, and the data 4 others'),
    (
      ('crane', 'crane', 'cat'),
      ('cat', 'crane'),
      {},
      r"Two outputs of the head are called 'crane'.*; choose\.$",
    ),
  ],
)
def test_names_that_do_not_agree_are_refused_with_the_remedy(head, data, options, said):
  with pytest.raises(UserError, match=said):
    rows(head, data, **options)
