"""Fine-tuning as in the paper (table 4): a released model, or a checkpoint, and a data set as argument.

python -m vit_jax.main --config=configs/finetune.py:b16,cifar10 --workdir=runs/b16_cifar10
python -m vit_jax.main --config=configs/finetune.py:b16,folder:/path/to/images --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:/path/to/model.npz,folder:/images --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:l16,imagenet2012 --workdir=runs/l16_imagenet \\
  --config.evaluators.test.real_labels=download        # ImageNet ReaL beside ImageNet

It begins from the model's released ImageNet-21k checkpoint (downloaded), with a new head, at 384 px (378
for H/14); --config.init.checkpoint=... names another one of the same architecture. A checkpoint instead of
a model (a path, an address, a name such as augreg/B_16; an .npz, a workdir, a Hugging Face folder) brings its
own architecture.
Data: imagenet2012, cifar10, cifar100, oxford_iiit_pet, oxford_flowers102, folder:/path or tfds:NAME; for the
tasks of VTAB see configs/vtab.py. The rate is one of those that the paper sweeps.

Published, not measured here:
  quoted from the original project's table (from ImageNet-21k, 384 px): B/16 CIFAR-10 99.02 %, CIFAR-100
  92.06 %, ImageNet 84.53 %; L/16 99.13 %, 92.91 %, 84.47 %.
  quoted from the paper, table 2 (L/16 from ImageNet-21k, three runs): ImageNet 85.30 ± 0.02 %, ReaL 88.62 ±
  0.05 %, CIFAR-10 99.15 ± 0.03 %, CIFAR-100 93.25 ± 0.05 %, Pets 94.67 ± 0.15 %, Flowers 99.61 ± 0.02 %. Its
  figures for ImageNet are at 512 px with averaged parameters.

Target: v3-32 --config.mesh.fsdp=8 --config.model.remat=block
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(model_and_data: str = 'b16,cifar10'):
  model, _, data = model_and_data.partition(',')
  return to_config_dict(recipes.finetuning(model, data or 'cifar10'))
