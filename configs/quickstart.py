"""A small Vision Transformer on real handwritten digits: nothing to download, a minute or two on two cores.

python -m vit_jax.main --config=configs/quickstart.py --workdir=runs/quickstart

Data: scikit-learn's 1,797 digits of 8 × 8 pixels, a fifth held out, stratified.

Target: cpu:1
"""

from vit_jax import config as c


def get_config():
  return c.to_config_dict(
    c.Config(
      total='100 epochs',
      batch_size=128,
      model=c.ViTConfig(variant='custom', patch=2, width=64, mlp_dim=256, depth=4, heads=4, pool='gap'),
      # Each image is shifted by up to a pixel.
      data=c.DataConfig(source='digits', image_size=(8, 8), channels=1, crop='random', padding=1, flip=False),
      evaluators={'test': c.ClassificationEvaluatorConfig(split='test', every='10 epochs')},
      objective=c.ClassificationObjective(label_smoothing=0.1),
      # Positions begin at 0.02 and patches of 2 × 2 pixels at about 1: positions have to catch up.
      optimizer=c.OptimizerConfig(weight_decay=0.05, lr_multipliers=(('^position_embedding', 10.0),)),
      schedule=c.ScheduleConfig(learning_rate=2e-3, warmup='10%', decay='cosine'),
      checkpoint=c.CheckpointConfig(every='10 epochs'),
      log_every='5 epochs',
    )
  )
