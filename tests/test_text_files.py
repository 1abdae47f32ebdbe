"""Lists of names that people write, with whatever editor."""

import pytest

from vit_jax.foundation.errors import UserError
from vit_jax.prepare import selection
from vit_jax.pretrained import class_names


@pytest.mark.parametrize('mark', [b'', b'\xef\xbb\xbf'], ids=['plain', 'notepad'])
@pytest.mark.parametrize('end', [b'\n', b'\r\n'], ids=['unix', 'windows'])
def test_first_name_is_the_same_from_every_editor(tmp_path, mark, end):
  file = tmp_path / 'names.txt'
  file.write_bytes(mark + 'Blüte'.encode() + end + b'cat' + end)
  assert class_names.read(str(file), 2) == ('Blüte', 'cat')
  assert selection.read_lines(str(file), 'classes') == ('Blüte', 'cat')


def test_empty_line_between_names_by_number_shifts_none(tmp_path):
  file = tmp_path / 'names.txt'
  file.write_text('cat\n\ndog\n\n')
  assert selection.read_lines(str(file), 'classes') == ('cat', 'dog')
  with pytest.raises(UserError, match=r'--class_names=.* has no name in line 2; write a class a line'):
    selection.read_lines(str(file), 'class_names', numbered=True)
  file.write_text('cat\ndog\n\n\n')
  assert selection.read_lines(str(file), 'class_names', numbered=True) == ('cat', 'dog')
