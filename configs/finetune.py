"""Fine-tuning: a released model, or a checkpoint, and a data set as argument, and perhaps a recipe.

python -m vit_jax.main --config=configs/finetune.py:b16,folder:/path/to/images --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:/path/to/dinov2,folder:/images --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:b16,folder:/path/to/images,all --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:b16,folder:/path/to/images,slides --workdir=runs/mine
python -m vit_jax.main --config=configs/finetune.py:b16,cifar10 --workdir=runs/b16_cifar10
python -m vit_jax.main --config=configs/finetune.py:l16,imagenet2012 --workdir=runs/l16_imagenet \\
  --config.evaluators.test.real_labels=download        # ImageNet ReaL beside ImageNet

Recipes: `head` fits the head alone, a logistic regression of the checkpoint's features, which some hundred images and
two cores are enough for: each image is looked at once, and no step follows (--config.total='4 epochs' adds steps on
random crops). `all` begins so too, and trains every layer, for as many epochs as suit the number of images. `slides`
trains every layer as tutorials do, with a rate of 2e-4 for 4 epochs of batches of 16, but begins as `head`, warms up
for two epochs, and gives each block 0.65 of the rate of the one behind it. `text` is `all` from a head that a CLIP or a
SigLIP makes of the names of the classes. `lora` and `dora` train adapters of queries and values, `bitfit` biases, and
`last4` the last four blocks (or any number), each with the head and from the same beginning. They choose batch size and
resolution by the data and the checkpoint. `paper` is the paper's (table 4): 384 px (378 for H/14), batch 512, 500 to
20,000 steps, with one of the rates that the paper sweeps.
Without a recipe it is `paper` for the data sets of the paper's table (imagenet2012, cifar10, cifar100, oxford_iiit_pet,
oxford_flowers102), and `head` for folder:/path, tfds:NAME and other sources. For VTAB's tasks see configs/vtab.py.

It begins from the model's released ImageNet-21k checkpoint (downloaded), with a new head;
--config.init.checkpoint=... names another one of the same architecture. A checkpoint instead of a model (a
path, an address, a name such as augreg/B_16; an .npz, a workdir, a Hugging Face folder) brings its own
architecture, and how images are prepared.

Published, not measured here:
  quoted from the original project's table (from ImageNet-21k, 384 px): B/16 CIFAR-10 99.02 %, CIFAR-100
  92.06 %, ImageNet 84.53 %; L/16 99.13 %, 92.91 %, 84.47 %.
  quoted from the paper, table 2 (L/16 from ImageNet-21k, three runs): ImageNet 85.30 ± 0.02 %, ReaL 88.62 ±
  0.05 %, CIFAR-10 99.15 ± 0.03 %, CIFAR-100 93.25 ± 0.05 %, Pets 94.67 ± 0.15 %, Flowers 99.61 ± 0.02 %. Its
  figures for ImageNet are at 512 px with averaged parameters.

Target: v3-32
"""

from vit_jax import recipes
from vit_jax.config import to_config_dict


def get_config(model_and_data: str = 'b16,cifar10'):
  return to_config_dict(recipes.chosen_finetuning(model_and_data))
