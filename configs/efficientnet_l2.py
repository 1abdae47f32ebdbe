"""EfficientNet-L2 on ImageNet by Noisy Student's recipe: the noise and the schedule of its students, on the labels.

python -m vit_jax.main --config=configs/efficientnet_l2.py --workdir=runs/l2

A student learns from a teacher's labels too: docs/distillation.md has the rounds. Published (arXiv 1911.04252,
table 2): EfficientNet-L2 85.5 % from the labels alone, 88.4 % as the student of a student with 300 million images;
12.3k TPUv3-core-days (quoted from the ViT paper, table 2). Not measured here.

Target: v3-2048
"""

from vit_jax import config as c

_PEAK = 0.128  # for 2,048 images


def get_config():
  """Noisy Student, section 3.1: RandAugment of magnitude 27, dropout and stochastic depth of the variant, 350 epochs
  in which the rate falls by 3 % every 2.4 epochs. Optimizer, smoothing and average are EfficientNet's.
  """
  config = c.Config(
    total='350 epochs',
    batch_size=2048,
    model=c.EfficientNetConfig(variant='L2', dtype='bfloat16'),
    data=c.DataConfig(
      source='tfds:imagenet2012',
      split='train',
      image_size=(475, 475),
      num_classes=1000,
      augment='randaugment(2,27)',
      prefetch=4,
    ),
    evaluators={'val': c.ClassificationEvaluatorConfig(split='validation', every='5 epochs')},
    objective=c.ClassificationObjective(label_smoothing=0.1),
    # Published: 1e-5 in the loss; here weights decay beside the gradients' moments.
    optimizer=c.OptimizerConfig(name='rmsprop', weight_decay=1e-5),
    schedule=c.ScheduleConfig(
      learning_rate=_PEAK, warmup='5 epochs', decay='exponential', end_value=_PEAK * 0.97 ** (345 / 2.4)
    ),
    ema=0.9999,
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )
  return c.to_config_dict(config)
