"""The published checkpoints of the original project, by short names such as 'imagenet21k/ViT-B_16'."""

import difflib
import itertools
import re
import urllib.parse

# gs://BUCKET/FILE is public at this address + BUCKET/FILE.
BUCKETS_URL = 'https://storage.googleapis.com/'
_BUCKETS = ('vit_models', 'mixer_models', 'bit_models')

# Maps each folder to the files that its authors list. A folder may have more: those are requested as well.
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
  # Big Transfer (arXiv 1912.11370): S is trained on ImageNet, M on ImageNet-21k, and M-…-ILSVRC2012 then
  # fine-tuned on ImageNet. distill/ has the teachers and students of arXiv 2106.05237.
  'bit': (
    'BiT-S-R50x1 BiT-S-R50x3 BiT-S-R101x1 BiT-S-R101x3 BiT-S-R152x2 BiT-S-R152x4 '
    'BiT-M-R50x1 BiT-M-R50x3 BiT-M-R101x1 BiT-M-R101x3 BiT-M-R152x2 BiT-M-R152x4 '
    'BiT-M-R50x1-ILSVRC2012 BiT-M-R50x3-ILSVRC2012 BiT-M-R101x1-ILSVRC2012 BiT-M-R101x3-ILSVRC2012 '
    'BiT-M-R152x2-ILSVRC2012 BiT-M-R152x4-ILSVRC2012 '
    'distill/R50x1_224 distill/R50x1_160 distill/R152x2_T_224 distill/R152x2_T_384'
  ),
}

# The checkpoint that 'How to train your ViT?' (arXiv 2106.10270) recommends for each model.
_BEST = {
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
RECOMMENDED = {size: f'{size}-i21k-300ep-lr_0.001-{best}' for size, best in _BEST.items()}
# The grammar of AugReg's names: the values that each part, in this order, can have.
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
_AUGREG = tuple('-'.join(parts) for parts in itertools.product(*_AUGREG_PARTS))
_TRANSFER = re.compile(r'--[a-z0-9_-]+-steps_\d+(\.\d+)?k?-lr_[\d.]+-res_\d+')


def is_name(source: str) -> bool:
  """Whether this has the form of a published name: a folder of the project, a slash and a file."""
  folder, _, file = source.partition('/')
  return bool(file) and folder in (*_FILES, 'augreg')


def url(name: str) -> str:
  """The https address of a published name; 'augreg/B_16' is the checkpoint recommended for that size."""
  folder, _, file = name.removesuffix('.npz').partition('/')
  if folder == 'augreg':
    file = RECOMMENDED.get(file, file)
  if folder == 'bit':  # its bucket has no folders
    place = f'bit_models/{file}.npz'
  elif file.startswith('Mixer'):
    place = f'mixer_models/{folder}/{file}.npz'
  else:
    place = f'vit_models/{folder}/{file}.npz'
  return BUCKETS_URL + urllib.parse.quote(place)


def names() -> list[str]:
  """The names that the authors of each folder list; of AugReg's the recommended ones."""
  listed = [f'{folder}/{file}' for folder, files in _FILES.items() for file in files.split()]
  return listed + [f'augreg/{size}' for size in RECOMMENDED]


def is_in_bucket(address: str) -> bool:
  """Whether a gs:// address is in one of the buckets of the published checkpoints."""
  return address.removeprefix('gs://').partition('/')[0] in _BUCKETS


def in_grammar(name: str) -> bool:
  """Whether a name in augreg/ follows that folder's grammar; True for names in other folders."""
  folder, _, file = name.removesuffix('.npz').partition('/')
  upstream, dashes, transfer = file.partition('--')
  known = upstream in _AUGREG and (not dashes or _TRANSFER.fullmatch(dashes + transfer) is not None)
  return folder != 'augreg' or file in RECOMMENDED or known


def is_published(name: str) -> bool:
  """Whether a name is exactly one that its authors list, or that AugReg's grammar allows."""
  folder, _, file = name.removesuffix('.npz').partition('/')
  return in_grammar(name) if folder == 'augreg' else file in _FILES.get(folder, '').split()


def nearest(name: str) -> list[str]:
  """Up to three published names similar to this one, and never the name itself."""
  name = name.removesuffix('.npz')
  folder, _, file = name.partition('/')
  found = [f'augreg/{_corrected(file)}'] if folder == 'augreg' else []
  known = names()
  found += [entry for entry in known if entry.rpartition('/')[2].lower() == name.lower()]  # without a folder
  caseless = {entry.lower(): entry for entry in known}
  found += [caseless[match] for match in difflib.get_close_matches(name.lower(), caseless, n=4, cutoff=0.4)]
  return [entry for entry in dict.fromkeys(found) if entry != name][:3]


def _corrected(file: str) -> str:
  """The most similar AugReg name that the grammar allows; a checkpoint that is recommended goes first."""
  upstream, dashes, transfer = file.partition('--')
  matcher = difflib.SequenceMatcher(b=upstream.lower())

  def likeness(name: str) -> float:
    matcher.set_seq1(name.lower())
    return matcher.ratio()

  begun = [name for name in RECOMMENDED.values() if name.startswith(upstream)]
  near = max(begun or (*RECOMMENDED.values(), *_AUGREG), key=likeness)
  if dashes and not _TRANSFER.fullmatch(dashes + transfer):
    transfer = 'imagenet2012-steps_20k-lr_0.03-res_384'
  return f'{near}{dashes}{transfer}'
