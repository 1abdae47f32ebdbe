"""The peer of inference.py and train_step.py: a ViT of transformers."""

from typing import Any

SIZES = {  # width, blocks, heads, hidden
  'Ti/16': (192, 12, 3, 768),
  'S/16': (384, 12, 6, 1536),
  'B/16': (768, 12, 12, 3072),
  'L/16': (1024, 24, 16, 4096),
  'H/14': (1280, 32, 16, 5120),
}


def config(variant: str, **options: Any) -> Any:
  """transformers' ViTConfig of a size, for 1,000 classes and, unless `options` say otherwise, 224 pixels."""
  import transformers

  width, depth, heads, hidden = SIZES[variant]
  return transformers.ViTConfig(
    hidden_size=width,
    num_hidden_layers=depth,
    num_attention_heads=heads,
    intermediate_size=hidden,
    patch_size=int(variant.split('/')[1]),
    num_labels=1000,
    **options,
  )
