"""ViT-S/16 on ImageNet-1k alone: the plain baseline of 'Better plain ViT baselines' (arXiv 2205.01580).

python -m vit_jax.main --config=configs/vit_s16_i1k.py --workdir=runs/vit_s16_i1k
python -m vit_jax.main --config=configs/vit_s16_i1k.py:300 --workdir=runs/vit_s16_i1k_300

The argument is the number of epochs. Published (quoted from that report, the validation images): 76.5 % after
90 epochs, in 6 to 7 hours on a TPU v3-8; 80 % after 300. Not measured here.

Target: v3-8
"""

from vit_jax import config as c


def get_config(epochs: str = '90'):
  return c.to_config_dict(
    c.Config(
      total=f'{epochs} epochs',
      batch_size=1024,
      # A layer below the head, as in the authors' own config.
      model=c.ViTConfig(
        variant='S/16', pool='gap', position='sincos2d', pre_logits_size=384, dtype='bfloat16'
      ),
      data=c.DataConfig(
        source='tfds:imagenet2012',
        split='train[:99%]',
        num_classes=1000,
        augment='light2',  # RandAugment(2, 10) and mixup 0.2
        prefetch=4,
      ),
      evaluators={
        name: c.ClassificationEvaluatorConfig(split=split, crop='central', resize=256, every='2500 steps')
        for name, split in (('minival', 'train[99%:]'), ('val', 'validation'))
      },
      optimizer=c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0, momentum_dtype='bfloat16'),
      schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='10000 steps', decay='cosine'),
      checkpoint=c.CheckpointConfig(every='1000 steps'),
    )
  )
