"""The published files of the original project, by their short names such as 'imagenet21k/ViT-B_16'."""

import difflib
import re

# The public form of gs://BUCKET/FILE.
BUCKETS_URL = 'https://storage.googleapis.com/'

# Folder -> files that its authors' pages name. Others of these folders are asked for too.
_FILES = {
  'imagenet21k': (
    'ViT-B_16 ViT-B_32 ViT-L_16 ViT-L_32 ViT-H_14 R50+ViT-B_16 R26+ViT-B_32 R50+ViT-L_32 '
    'Mixer-B_16 Mixer-L_16'
  ),
  'imagenet21k+imagenet2012': (
    'ViT-B_16 ViT-B_32 ViT-L_16 ViT-L_32 ViT-B_16-224 ViT-L_16-224 R50+ViT-B_16 R26+ViT-B_32 R50+ViT-L_32'
  ),
  'imagenet1k': 'Mixer-B_16 Mixer-L_16',
  'sam': 'ViT-S_16 ViT-B_16 ViT-B_32 Mixer-B_16 Mixer-B_32',
  'gsam': '',
  'lit': 'LiT-B16B LiT-L16L LiT-L16S LiT-L16Ti',
  # 'Big Transfer' (arXiv 1912.11370): S trained on ImageNet, M on ImageNet-21k, then fine-tuned on ImageNet;
  # and its teachers and students of arXiv 2106.05237.
  'bit': (
    'BiT-S-R50x1 BiT-S-R50x3 BiT-S-R101x1 BiT-S-R101x3 BiT-S-R152x2 BiT-S-R152x4 '
    'BiT-M-R50x1 BiT-M-R50x3 BiT-M-R101x1 BiT-M-R101x3 BiT-M-R152x2 BiT-M-R152x4 '
    'BiT-M-R50x1-ILSVRC2012 BiT-M-R50x3-ILSVRC2012 BiT-M-R101x1-ILSVRC2012 BiT-M-R101x3-ILSVRC2012 '
    'BiT-M-R152x2-ILSVRC2012 BiT-M-R152x4-ILSVRC2012 '
    'distill/R50x1_224 distill/R50x1_160 distill/R152x2_T_224 distill/R152x2_T_384'
  ),
}

# 'How to train your ViT?' (arXiv 2106.10270): for each model the one its authors recommend.
_AUGREG_BEST = {
  'Ti_16': 'aug_none-wd_0.03-do_0.0-sd_0.0',
  'S_32': 'aug_none-wd_0.1-do_0.0-sd_0.0',
  'S_16': 'aug_light1-wd_0.03-do_0.0-sd_0.0',
  'B_32': 'aug_light1-wd_0.1-do_0.0-sd_0.0',
  'B_16': 'aug_medium1-wd_0.1-do_0.0-sd_0.0',
  'L_16': 'aug_strong1-wd_0.1-do_0.0-sd_0.0',
  'R_Ti_16': 'aug_none-wd_0.03-do_0.0-sd_0.0',
  'R26_S_32': 'aug_light1-wd_0.1-do_0.0-sd_0.0',
  'R50_L_32': 'aug_medium1-wd_0.1-do_0.1-sd_0.1',
}
# The grammar of AugReg's names: what each part may be. The first four are always there.
_AUGREG_PARTS = (
  ('Ti_16', 'S_32', 'S_16', 'B_32', 'B_16', 'B_8', 'L_16', 'R_Ti_16', 'R26_S_32', 'R50_L_32'),
  ('i21k', 'i1k', 'i21k_30'),
  ('300ep',),
  ('lr_0.001',),
  ('aug_none', 'aug_light0', 'aug_light1', 'aug_medium1', 'aug_medium2', 'aug_strong1', 'aug_strong2'),
  ('wd_0.1', 'wd_0.03'),
  ('do_0.0', 'do_0.1'),
  ('sd_0.0', 'sd_0.1'),
)
_TRANSFER = re.compile(r'--[a-z0-9_-]+-steps_\d+(\.\d+)?k?-lr_[\d.]+-res_\d+')


def is_name(source: str) -> bool:
  """Whether this looks like the name of a published file: a folder of the project and a file."""
  folder, _, file = source.partition('/')
  return bool(file) and folder in (*_FILES, 'augreg')


def url(name: str) -> str:
  """Where the file of a name lies; 'augreg/B_16' is the one of that size its authors recommend."""
  folder, _, file = name.removesuffix('.npz').partition('/')
  if folder == 'augreg' and file in _AUGREG_BEST:
    file = _best(file)
  if folder == 'bit':  # a bucket without folders
    return f'{BUCKETS_URL}bit_models/{file}.npz'
  bucket = 'mixer_models' if file.startswith('Mixer') else 'vit_models'
  return f'{BUCKETS_URL}{bucket}/{folder}/{file}.npz'.replace('+', '%2B')


def in_grammar(name: str) -> bool:
  """Whether a name of AugReg is one that its grammar allows; True for the other folders."""
  folder, _, file = name.removesuffix('.npz').partition('/')
  if folder != 'augreg':
    return True
  return file in _AUGREG_BEST or _corrected(file) == file


def nearest(name: str) -> list[str]:
  """Up to three published names most like this one."""
  name = name.removesuffix('.npz')
  folder, _, file = name.partition('/')
  found = [f'augreg/{_corrected(file)}'] if folder == 'augreg' else []
  known = [f'{folder}/{file}' for folder, files in _FILES.items() for file in files.split()]
  known += [f'augreg/{size}' for size in _AUGREG_BEST]
  found += [entry for entry in known if entry.rpartition('/')[2].lower() == name.lower()]  # without a folder
  caseless = {entry.lower(): entry for entry in known}
  found += [caseless[match] for match in difflib.get_close_matches(name.lower(), caseless, n=4, cutoff=0.4)]
  return [entry for entry in dict.fromkeys(found) if entry != name][:3]


def _best(size: str) -> str:
  return f'{size}-i21k-300ep-lr_0.001-{_AUGREG_BEST[size]}'


def _corrected(file: str) -> str:
  """A name of AugReg with each part replaced by the most similar one that the grammar allows."""
  upstream, _, transfer = file.partition('--')
  parts = upstream.split('-')
  size = _closest(parts[0], _AUGREG_PARTS[0])
  default = _best(size if size in _AUGREG_BEST else 'B_16').split('-')
  corrected = [size]
  for position, allowed in enumerate(_AUGREG_PARTS[1:], start=1):
    key = allowed[0].partition('_')[0] if position > 3 else None
    given = parts[position] if key is None and position < len(parts) else None
    given = next((part for part in parts if key and part.startswith(key + '_')), given)
    corrected.append(default[position] if given is None else _closest(given, allowed))
  if transfer and _TRANSFER.fullmatch('--' + transfer):
    return '-'.join(corrected) + '--' + transfer
  return '-'.join(corrected) + ('--imagenet2012-steps_20k-lr_0.03-res_384' if transfer else '')


def _closest(part: str, allowed: tuple[str, ...]) -> str:
  return max(allowed, key=lambda other: difflib.SequenceMatcher(None, part.lower(), other.lower()).ratio())
