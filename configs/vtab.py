"""A task of VTAB-1k as in the paper (table 4): a released model, or a checkpoint, and a task as argument.

python -m vit_jax.main --config=configs/vtab.py:b16,clevr_count --workdir=runs/b16_clevr_count
python -m vit_jax.main --config=configs/vtab.py:b16,clevr_count,val --workdir=runs/choosing
python -m vit_jax.main --config=configs/vtab.py:/path/to/model.npz,dmlab --workdir=runs/mine

2,500 steps of 512 images at rate 0.01, at 384 px, on the task's 1,000 images; tested once, at the end, on its
test split. With ',val' it trains on 800 of them and is tested on the other 200, to choose by. All images are
squashed to a square; training images are cropped and mirrored where that leaves the class as it is.
Tasks: caltech101, cifar100, dtd, oxford_flowers102, oxford_iiit_pet, svhn, sun397; patch_camelyon, eurosat,
resisc45, diabetic_retinopathy; clevr_count, clevr_distance, dmlab, kitti_distance, dsprites_location,
dsprites_orientation, smallnorb_azimuth, smallnorb_elevation. docs/evaluation.md says how to prepare them.

Published (quoted from the paper, table 2: mean accuracy over the 19 tasks, mean and deviation of three runs):
H/14 from JFT 77.63 ± 0.23 %, L/16 from JFT 76.28 ± 0.46 %, L/16 from ImageNet-21k 72.72 ± 0.21 %. Not
measured here.

Target: v3-32
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict
from vit_jax.foundation.errors import UserError


def get_config(model_and_task: str = 'b16,cifar100'):
  words = model_and_task.split(',')
  if len(words) > 3:
    raise UserError(
      f'configs/vtab.py:{model_and_task} has {len(words)} arguments; give model and task, and perhaps val, as in '
      f'b16,cifar100,val.'
    )
  model, task, choosing = [*words, '', ''][:3]
  if choosing not in ('', 'val'):
    raise UserError(f'{choosing!r} is not a split to choose by; write val, or leave it out.')
  return to_config_dict(recipes.vtab(model, task, choosing=bool(choosing)))
