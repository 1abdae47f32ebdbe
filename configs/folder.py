"""Your own images from scratch: a folder with a sub-folder for each class.

python -m vit_jax.main --config=configs/folder.py:/path/to/images --workdir=runs/mine

/path/to/images has train/ and val/ with a sub-folder a class each, or the sub-folders directly
(then a tenth of the images is held out). With few images, fine-tuning (configs/finetune.py) is better.

Target: cpu:1
"""

from vit_jax import config as c


def get_config(path: str = ''):
  return c.to_config_dict(
    c.Config(
      total='60 epochs',
      batch_size=64,
      model=c.ViTConfig(variant='custom', patch=8, width=128, mlp_dim=384, depth=6, heads=4, pool='gap'),
      data=c.DataConfig(source=f'folder:{path}', image_size=(64, 64), crop='inception', area=(0.3, 1.0)),
      evaluators={'val': c.ClassificationEvaluatorConfig(split='val', every='10 epochs')},
      objective=c.ClassificationObjective(label_smoothing=0.1),
      optimizer=c.OptimizerConfig(weight_decay=0.05, clip_norm=1.0),
      schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='10%', decay='cosine'),
      checkpoint=c.CheckpointConfig(every='10 epochs'),
      log_every='2 epochs',
    )
  )
