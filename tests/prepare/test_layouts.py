"""What people download, as it is unpacked: `folder:` and `prepare` read the same classes, or say what to do."""

import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from made_sources import folder_of, zip_of

from vit_jax.data.sources.folder import FolderSource
from vit_jax.foundation.errors import UserError

CLASSES = ('cat', 'dog')


class Layout(NamedTuple):
  """The files of a download, and what becomes of it.

  Attributes:
    images: split -> where its images are, with {c} for the class; '': it has no splits.
    others: other files -> their text, or images that are no part of the data.
    folder: the sentence of `folder:`; None: it reads `images`.
    prepare: the sentence of `prepare`; None: it reads `images`.
  """

  images: dict[str, str]
  others: dict[str, str | None] = {}
  folder: str | None = None
  prepare: str | None = None


def refused(images: dict[str, str], folder: str, prepare: str | None = '', **others: str | None) -> Layout:
  """A layout that both refuse, in the same words unless `prepare` has others."""
  return Layout(images, others, folder, folder if prepare == '' else prepare)


def splits(train: str, val: str = '', test: str = '', inner: str = '{c}/{i}.jpg') -> dict[str, str]:
  folders = {'train': train, 'val': val, 'test': test}
  return {split: f'{folder}/{inner}' for split, folder in folders.items() if folder}


def table(column: str, names: str) -> str:
  rows = [f'{names.format(c=c, i=i)},{c}' for c in CLASSES for i in range(3)]
  return '\n'.join([f'{column},label', *rows])


ROWS = table('file_name', '{c}{i}.jpg')
FLAT = '{c}{i}.jpg'
NFC, NFD = 'caf\u00e9', 'cafe\u0301'

LAYOUTS = {
  'classes': Layout({'': '{c}/{i}.jpg'}),
  'classes with folders in some': Layout({'': '{c}/{i}.jpg'}, {'cat/more/9.jpg': 'cat'}),
  'ImageNet': Layout(splits('train', 'val', inner='{c}/{c}_{i}.JPEG')),
  'Hugging Face: imagefolder': Layout(splits('train', 'validation', 'test')),
  'Roboflow: folders of classes': Layout(splits('train', 'valid', 'test'), {'README.roboflow.txt': ''}),
  'train, dev, eval': Layout(splits('train', 'dev', 'eval')),
  'Kaggle: cats and dogs': Layout(splits('training_set', test='test_set')),
  'Kaggle: fruits': Layout(splits('Training', test='Test')),
  'Kaggle: tumours': Layout(splits('Training', test='Testing')),
  'Kaggle: upper case': Layout(splits('TRAIN', 'Valid', 'TEST')),
  'Kaggle: Train Images': Layout(splits('Train Images', 'Val Images')),
  'Kaggle: scenes': Layout(splits('seg_train', test='seg_test'), {'seg_pred/1.jpg': None}),
  'years': Layout(splits('train2017', 'val2017')),
  'tiny ImageNet, sorted': Layout(splits('train', 'val', inner='{c}/images/{i}.JPEG')),
  'thumbnails of a NAS': Layout(
    splits('train', 'val'),
    {f'{f}@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg': None for f in ('', 'train/', 'train/cat/')},
  ),
  'what is left of an Apple zip': Layout({'': '{c}/{i}.jpg'}, {'__MACOSX/cat/1.jpg': None}),
  'accents in val': Layout(splits('train', 'val'), {f'train/{NFC}/1.jpg': NFC, f'val/{NFD}/1.jpg': NFC}),
  'accents both ways': Layout({'': '{c}/{i}.jpg'}, {f'{NFC}/1.jpg': NFC, f'{NFD}/2.jpg': NFC}),
  'Kaggle: scenes, doubled': refused(
    splits('seg_train/seg_train', test='seg_test/seg_test'),
    r'seg_t\w+ has no images in seg_t\w+ but one level below, in cat, dog; .* move the images up into',
  ),
  'Kaggle: X-rays, one level too high': refused(
    splits('chest_xray/train', 'chest_xray/val', 'chest_xray/test'),
    r'has no images in chest_xray but one level below, in test, train, val; .* give \S+/chest_xray,',
  ),
  'several sets, one level too high': refused(
    {'train': 'north/{c}/{i}.jpg', 'val': 'south/{c}/{i}.jpg'},
    r'no images in north, south but one level below, in cat, dog; .* give \S+/north, or rename .* train, val and',
  ),
  'Hugging Face: data/, one level too high': refused(
    splits('data/train', test='data/test'),
    'no images in data but one level below, in test, train; .* give .*/data, or',
  ),
  'ImageNet, one level too high': refused(
    splits('Data/CLS-LOC/train', 'Data/CLS-LOC/val'),
    'no images in Data but one level below, in CLS-LOC; .*/Data, or',
    **{'Annotations/1.xml': '', 'ImageSets/train.txt': ''},
  ),
  'Kaggle: flat, classes in file names': refused(
    splits('train', test='test1', inner='{c}.{i}.jpg'), 'has no images in class .*folders; put the jpg, '
  ),
  'Kaggle: flat, with a table': refused(
    splits('train', test='test', inner=FLAT), r'no images in class .*labels\.csv', **{'labels.csv': ROWS}
  ),
  'images and a table': refused(
    {'': 'images/' + FLAT},
    r"one class folder, 'images', and .*labels\.csv.*; if this has the classes, (give|prepare) ",
    **{'labels.csv': ROWS},
  ),
  'Hugging Face: metadata': refused(
    splits('train', test='test', inner=FLAT),
    r'has no images .* but metadata.csv; prepare .* \(vit_jax prepare {root} ',
    None,
    **{'train/metadata.csv': ROWS, 'test/metadata.csv': ROWS},
  ),
  'Hugging Face: metadata below data/': refused(
    splits('data/train', test='data/test', inner=FLAT),
    'no images in data but one level below, in test, train',
    None,
    **{'data/train/metadata.csv': ROWS, 'data/test/metadata.csv': ROWS},
  ),
  'Hugging Face: metadata at the top': refused(
    {'': 'images/' + FLAT},
    "one class folder, 'images', and beside it metadata.csv; ",
    None,
    **{'metadata.csv': table('file_name', 'images/{c}{i}.jpg')},
  ),
  'Roboflow: YOLO': refused(
    splits('train', 'valid', inner='images/{c}{i}.jpg'),
    'train has the folders images, labels, which are kinds of files and no classes; ',
    **{'train/labels/1.txt': '', 'valid/labels/1.txt': '', 'data.yaml': ''},
  ),
  'YOLO, kinds of files first': refused(
    splits('images/train', 'images/val', inner=FLAT),
    'has the folders images, labels, which are kinds of files',
    **{'labels/train/1.txt': ''},
  ),
  'Roboflow: COCO': refused(
    splits('train', 'valid', inner=FLAT), 'no images in class', **{'train/_annotations.coco.json': '{}'}
  ),
  'Roboflow: lists of classes': refused(
    splits('train', 'valid', inner=FLAT), r'no images in class .*_classes\.csv', **{'train/_classes.csv': ''}
  ),
  'COCO': refused(splits('train2017', 'val2017', inner=FLAT), 'no images in', **{'annotations/a.json': ''}),
  'VOC': refused(
    {'': 'JPEGImages/' + FLAT},
    'has the folders Annotations, ImageSets, JPEGImages, SegmentationClass, which are kinds of files',
    **{'Annotations/1.xml': '', 'ImageSets/Main/train.txt': '', 'SegmentationClass/1.png': None},
  ),
  'tiny ImageNet': refused(
    {'train': 'train/{c}/images/{i}.JPEG', 'val': 'val/images/{c}{i}.JPEG'},
    "val.* has a folder 'images', and the training split has folders of 2 classes; put each image into",
    **{'val/val_annotations.txt': ''},
  ),
  'classes in another case': refused(
    splits('train', 'val'),
    r"val.* has the class folder 'Cat', and the training split 'cat'; rename",
    **{'val/Cat/1.jpg': None},
  ),
  'val twice': refused(
    splits('train', 'val', 'valid'), "both val/ and valid/, which are the split 'val'; remove or rename one"
  ),
  'train twice': refused(splits('Train', 'train'), "has both Train/ and train/, which are the split 'train'"),
  'a class whose name is an escape': refused(
    splits('train', 'val'),
    r"has a class called '\\x1b\[2Jx', which cannot be printed in one line; rename it",
    **{'train/\x1b[2Jx/1.jpg': None},
  ),
}


def made(root: pathlib.Path, layout: Layout) -> dict[str, tuple[str, str]]:
  """Makes the files; returns image -> (split, class)."""
  truth = {}
  for split, names in layout.images.items():
    for c in CLASSES:
      truth |= {names.format(c=c, i=i): (split, c) for i in range(3)}
  for name, content in layout.others.items():
    if name.endswith(('.jpg', '.png')):
      folder_of(root, name)
      split = name.split('/')[0] if len(layout.images) > 1 else ''
      truth |= {name: (split, content)} if content else {}
    else:
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_text(content or '')
  folder_of(root, *truth)
  return truth


def read_by_folder(root: pathlib.Path) -> dict[str, tuple[str, str]]:
  found = {}
  for split in FolderSource.splits(str(root)):
    source = FolderSource(str(root), split, val_fraction=0.1)
    for number, label in enumerate(source.labels()):
      found[os.path.relpath(source[number].name, root)] = (split, source.class_names[label])
  return found


@pytest.mark.parametrize('name', LAYOUTS)
def test_downloads_are_read_as_the_person_means_them_or_refused_with_a_sentence(listed, tmp_path, name):
  layout, root = LAYOUTS[name], tmp_path / 'data'
  truth = made(root, layout)
  if layout.folder is None:
    has_splits = '' not in layout.images
    found = read_by_folder(root)
    assert {image: (split * has_splits, label) for image, (split, label) in found.items()} == truth
  else:
    with pytest.raises(UserError, match=layout.folder.format(root=root)):
      read_by_folder(root)
  if layout.prepare is None:
    assert listed(root) == {image: (split or 'train', label) for image, (split, label) in truth.items()}
  else:
    with pytest.raises(UserError, match=layout.prepare):
      listed(root)


@pytest.mark.parametrize('tops', [('Training', 'Test'), ('north', 'south'), ('photos',)])
def test_archives_are_read_as_the_folders_in_them(listed, tmp_path, tops: Sequence[str]):
  names = [f'{top}/{c}/{i}.jpg' for top in tops for c in CLASSES for i in range(3)]
  source = zip_of(tmp_path / 'x.zip', *names)
  if tops[0] == 'north':
    with pytest.raises(UserError, match=r'no images in north, south but .* in cat, dog; .* unpack it and'):
      listed(source)
  else:
    found = {'Training': 'train', 'Test': 'test', 'photos': 'train'}
    assert set(listed(source).values()) == {(found[top], c) for top in tops for c in CLASSES}


def test_classes_beside_a_folder_that_is_called_like_a_split_are_not_left_out(listed, tmp_path):
  people = ('Alice', 'Bob', 'Dev')
  root = folder_of(tmp_path / 'people', *(f'{name}/{i}.jpg' for name in people for i in range(3)))
  with pytest.raises(UserError, match='has Alice, Bob beside Dev, which is called like a split; put'):
    FolderSource(str(root), 'train', val_fraction=0.1)
  with pytest.raises(UserError, match='has no images in class folders'):
    listed(root)
