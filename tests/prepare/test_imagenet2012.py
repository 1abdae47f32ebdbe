"""ImageNet's challenge of 2012 from its tars and development kit, in small."""

import io
import pathlib
import tarfile

import numpy as np
import pytest
import scipy.io
from made_samples import picture
from made_sources import add_file, tar_around

from vit_jax.foundation.errors import UserError


@pytest.fixture
def source(tmp_path) -> pathlib.Path:
  """Classes n1 to n3; the challenge's own numbers go the other way round; n9 is no leaf and has no images."""
  folder = tmp_path / 'ilsvrc'
  folder.mkdir()
  inner = []
  for k in (1, 2, 3):
    inner.append(tmp_path / f'n0000000{k}.tar')
    with tarfile.open(inner[-1], 'w') as tar:
      for number in range(2):
        add_file(tar, f'n0000000{k}_{number}.JPEG', picture(10 * k + number))
  tar_around(folder / 'ILSVRC2012_img_train.tar', *inner)
  with tarfile.open(folder / 'ILSVRC2012_img_val.tar', 'w') as tar:
    for number in (4, 1, 3, 2):  # the order in the tar means nothing
      add_file(tar, f'ILSVRC2012_val_{number:08}.JPEG', picture(100 + number))
  kinds = [('ILSVRC2012_ID', object), ('WNID', object), ('words', object)]
  synsets = np.array(
    [(1, 'n00000003', 'c'), (2, 'n00000002', 'b'), (3, 'n00000001', 'a'), (1001, 'n00000009', 'x')], kinds
  ).reshape(-1, 1)
  table = io.BytesIO()
  scipy.io.savemat(table, {'synsets': synsets})
  with tarfile.open(folder / 'ILSVRC2012_devkit_t12.tar.gz', 'w:gz') as tar:
    add_file(tar, 'ILSVRC2012_devkit_t12/data/meta.mat', table.getvalue())
    truth = b'3\n1\n1\n2\n'
    add_file(tar, 'ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt', truth)
  return folder


def test_validation_images_have_the_classes_of_the_development_kit(listed, source):
  found = listed(source)
  val = {name: labels for name, (split, *labels) in found.items() if split == 'val'}
  assert val == {
    'val/ILSVRC2012_val_00000001.JPEG': ['n00000001'],
    'val/ILSVRC2012_val_00000002.JPEG': ['n00000003'],
    'val/ILSVRC2012_val_00000003.JPEG': ['n00000003'],
    'val/ILSVRC2012_val_00000004.JPEG': ['n00000002'],
  }
  train = {name: labels for name, (split, *labels) in found.items() if split == 'train'}
  assert len(train) == 6 and all(name.split('/')[1] == label for name, (label,) in train.items())


@pytest.mark.parametrize('name', ['ILSVRC2012_img_val.tar', 'ILSVRC2012_devkit_t12.tar.gz'])
def test_missing_files_of_the_challenge_are_named(listed, source, name):
  (source / name).unlink()
  with pytest.raises(UserError, match=f'has ILSVRC2012_img_train.tar and not {name}; download it'):
    listed(source)


def test_damaged_development_kit_is_refused(listed, source):
  (source / 'ILSVRC2012_devkit_t12.tar.gz').write_bytes(b'\x1f\x8bxx')
  with pytest.raises(UserError, match=r'devkit_t12.tar.gz cannot be read'):
    listed(source)
