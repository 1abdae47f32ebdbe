"""SigLIP (arXiv 2303.15343) and CLIP (arXiv 2103.00020): an image tower and a text tower that learn from captions.

python -m vit_jax.main --config=configs/siglip.py:digits --workdir=runs/digits_and_words      # minutes of two cores
python -m vit_jax.main --config=configs/siglip.py:b16 --config.data.source=tfds:mine --workdir=runs/siglip
python -m vit_jax.main --config=configs/siglip.py:b16,clip --config.data.source=tfds:mine --workdir=runs/clip
python -m vit_jax.main --config=configs/siglip.py:hf:google/siglip-base-patch16-224,folder:/images --workdir=runs/mine
python -m vit_jax.main --config=configs/siglip.py:/path/to/clip,tfds:~/data/cc12m/1.0.0,captions --workdir=runs/cc12m

Captions are the names of classes in objective.prompts; with `,captions` they are the images' own, and their recall is
measured, of the last 1 % of the images where 'train' is the only split. `b16` (any size) is SigLIP's from scratch:
batches of 32,768, images of 224 pixels, a text tower as large as the image tower, b2 = 0.95 (section 4), t' = log 10
and b = -10 (section 3.2); its texts of 16 tokens of a vocabulary of 32,000 are 64 bytes here. big_vision publishes no
config of it: rate, clipping and cosine are those of its siglip_lit_coco.py (whose decay is 0.01, and warm-up 3 %), the
decay its CapPa's 1e-4, here 1e-4 / 1e-3, since big_vision's is no share of the rate; its Adafactor is AdamW here.
`b16,clip` is CLIP's ViT by its tables 19 and 20: softmax, 32 epochs of 400 million images, a causal text tower of width
512. A checkpoint with data behind the comma, a CLIP or a SigLIP, is fine-tuned whole by the loss that it was trained
with, as in FLYP (arXiv 2212.00638); its zero-shot accuracy is measured before the first step.

`b16` and `clip` take bytes unless --config.objective.tokenizer names a folder with a tokenizer.json; then
--config.model.text_vocabulary is its number of tokens, text_length of `b16` 16, and text_end of `clip` its end. Not
measured here, but `digits`.

Target: v3-128
"""

import dataclasses

from vit_jax import config as c
from vit_jax import recipes
from vit_jax.data.sources import splits
from vit_jax.foundation.errors import UserError
from vit_jax.pretrained import formats

_CLIP_PIXELS = {
  'mean': (0.48145466, 0.4578275, 0.40821073),
  'std': (0.26862954, 0.26130258, 0.27577711),
}


def get_config(argument: str = 'b16'):
  what, _, how = argument.partition(',')
  if what == 'digits':
    return c.to_config_dict(digits(how))
  if how and how != 'clip':
    data, comma, kind = how.partition(',')
    if comma and kind != 'captions':
      raise UserError(f"{kind!r} is not known behind {data}; write 'captions', or nothing.")
    return c.to_config_dict(finetuning(what, data, captions=bool(comma)))
  return c.to_config_dict((clip if how else siglip)(recipes.variant_of(what)))


def siglip(variant: str) -> c.Config:
  return c.Config(
    total='9000000000 examples',
    batch_size=32_768,
    model=c.TwoTowersConfig(variant=variant, dtype='bfloat16'),
    data=c.DataConfig(source='tfds:imagenet2012', crop='resize', flip=False, prefetch=4),
    objective=c.ContrastiveObjective(),
    optimizer=c.OptimizerConfig(name='adam', b2=0.95, weight_decay=0.1, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=1e-3, warmup='2%', decay='cosine'),
    evaluators={'imagenet': c.ZeroShotEvaluatorConfig(split='validation', every='1%')},
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def clip(variant: str) -> c.Config:
  return c.Config(
    total='12800000000 examples',
    batch_size=32_768,
    model=c.TwoTowersConfig(
      variant=variant,
      pool='token',
      pre_norm=True,
      patch_bias=False,
      pre_logits='linear',
      pre_logits_size=512,
      activation='quick_gelu',
      norm_epsilon=1e-5,
      text_width=512,
      text_mlp_dim=2048,
      text_heads=8,
      text_length=77,
      text_causal=True,
      text_end=1,
      logit_scale=1 / 0.07,
      logit_bias=0.0,
      dtype='bfloat16',
    ),
    data=c.DataConfig(
      source='tfds:imagenet2012', crop='inception', area=(0.9, 1.0), flip=False, prefetch=4, **_CLIP_PIXELS
    ),
    objective=c.ContrastiveObjective(loss='softmax'),
    optimizer=c.OptimizerConfig(name='adam', b2=0.98, arguments=(('eps', 1e-6),), weight_decay=0.2),
    schedule=c.ScheduleConfig(learning_rate=5e-4, warmup='2000 steps', decay='cosine'),
    evaluators={'imagenet': c.ZeroShotEvaluatorConfig(split='validation', every='1%')},
    checkpoint=c.CheckpointConfig(every='1000 steps'),
  )


def finetuning(checkpoint: str, data: str, *, captions: bool) -> c.Config:
  """FLYP's: its rate, decay and epochs, in smaller batches; by the names of classes, or `captions` of images."""
  whole = formats.read(checkpoint, pretraining=True)
  architecture = whole.architecture
  if not isinstance(architecture.model, c.TwoTowersConfig):
    raise UserError(f'{checkpoint} has no text tower; take a folder of CLIP or SigLIP.')
  source, split = recipes.source_of(data), 'train'
  objective = c.ContrastiveObjective(loss=whole.link, tokenizer=checkpoint)
  if captions:
    objective = dataclasses.replace(objective, prompts=('{text}',))
    if set(splits.of(source)) == {'train'}:
      split, held_out = 'train[:99%]', 'train[99%:]'
    else:
      held_out = recipes.held_out(data)
    evaluator, best = c.RetrievalEvaluatorConfig(split=held_out), 'val/image_to_text_recall_at_1'
  else:
    evaluator, best = c.ZeroShotEvaluatorConfig(split=recipes.held_out(data)), 'val/accuracy'
  return c.Config(
    total='10 epochs',
    batch_size=256,
    model=architecture.model,
    init=c.InitConfig(checkpoint=checkpoint),
    data=c.DataConfig(
      source=source, split=split, image_size=architecture.image_size, crop='inception', area=(0.9, 1.0)
    ),
    objective=objective,
    optimizer=c.OptimizerConfig(weight_decay=0.1, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=1e-5, warmup='5%', decay='cosine'),
    evaluators={'val': evaluator},
    checkpoint=c.CheckpointConfig(every='10%', best=best, keep=1),
  )


def digits(loss: str) -> c.Config:
  """Small towers and the names of ten digits: 'sigmoid', or 'softmax'."""
  sizes = {'patch': 2, 'width': 64, 'mlp_dim': 256, 'depth': 4, 'heads': 4}
  return c.Config(
    total='100 epochs',
    batch_size=128,
    model=c.TwoTowersConfig(variant='custom', **sizes, text_depth=2, text_length=24),
    data=c.DataConfig(source='digits', image_size=(8, 8), channels=1, crop='random', padding=1, flip=False),
    objective=c.ContrastiveObjective(loss=loss or 'sigmoid', prompts=('the digit {}', 'a {} by hand')),
    optimizer=c.OptimizerConfig(weight_decay=0.05, clip_norm=1.0),
    schedule=c.ScheduleConfig(learning_rate=2e-3, warmup='10%', decay='cosine'),
    evaluators={'test': c.ZeroShotEvaluatorConfig(every='10 epochs')},
    checkpoint=c.CheckpointConfig(every='10 epochs'),
    log_every='5 epochs',
  )
