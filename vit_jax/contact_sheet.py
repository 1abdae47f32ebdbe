"""Draws training images under each level of augmentation, to look at before a long run.

vit_jax contact_sheet --config=quickstart --workdir=runs/quickstart
vit_jax contact_sheet --config=folder:/path/to/images --workdir=runs/mine
vit_jax contact_sheet --config=cifar10_scratch --workdir=runs/cifar10 --config.data.augment=medium2

Writes <workdir>/report/augmentations.png: the same 64 images with the same crops under each of AugReg's
levels, 3-Augment and the config's own augmentation, mirrored and mixed with each other as in a training step.
"""

from absl import flags

from vit_jax import cli
from vit_jax.foundation import files

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE_string('workdir', None, 'The picture goes into its report/.')


def main() -> None:
  """Writes the picture."""
  config = cli.config_of(_CONFIG)
  path = cli.local_folder(_WORKDIR) / 'report' / 'augmentations.png'
  files.make_directories(path.parent)  # before the work, so that an error comes at once
  # Imported here: the start takes seconds, which --help need not.
  from vit_jax.data import sources
  from vit_jax.data.augmentation_sheet import ACROSS, draw, levels, training_images
  from vit_jax.parallel import distributed

  distributed.skip_absent_tpu()
  source = sources.open_training(config.data, config.seed)
  squares = {title: training_images(source, data, config.seed) for title, data in levels(config.data).items()}
  draw(squares).save(path)
  files.sync([path])
  print(f'Wrote {path}: {ACROSS**2} images under {len(squares)} augmentations.')


if __name__ == '__main__':
  cli.run(main)
