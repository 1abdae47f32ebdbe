"""The peer of configs/cifar10_fast.py: CIFAR-10 from scratch by a small ViT of timm, compiled by torch.

python benchmarks/time_to_accuracy.py --epochs=9
python benchmarks/time_to_accuracy.py --epochs=9 --locality

timm's VisionTransformer of the same sizes (64 wide, four blocks, two heads, patches of 4, mean of the tokens), timm's
Muon, warm-up and cosine, crops and flips of whole batches in memory, label smoothing of 0.1: what one writes with timm
for the same budget. `--locality` gives it the depthwise convolution that our MLPs have. It prints the accuracy of all
10,000 test images after each epoch, and the processor time until then, compilation and evaluations included; bind it
to cores with `taskset`. It needs timm and torchvision, as timm_vit.py says.
"""

import argparse
import math
import os
from typing import Any

import numpy as np
import timm_vit
import torch
from torch import nn

MEAN, STD = 127.5, 127.5
PADDING = 4  # pixels, on each side of an image, before a crop


class LocalMlp(nn.Module):
  """An MLP with a 3 x 3 depthwise convolution between two GELUs (LocalViT): timm's plain ViT has none."""

  def __init__(self, in_features: int, hidden_features: int, **_: Any):
    super().__init__()
    self.expand = nn.Linear(in_features, hidden_features)
    self.depthwise = nn.Conv2d(hidden_features, hidden_features, 3, padding=1, groups=hidden_features)
    self.project = nn.Linear(hidden_features, in_features)

  def forward(self, tokens: torch.Tensor) -> torch.Tensor:
    hidden = nn.functional.gelu(self.expand(tokens))
    side = math.isqrt(hidden.shape[1])
    images = hidden.transpose(1, 2).unflatten(2, (side, side))
    hidden = nn.functional.gelu(self.depthwise(images)).flatten(2).transpose(1, 2)
    return self.project(hidden)


def create(locality: bool) -> nn.Module:
  from timm.models.vision_transformer import VisionTransformer

  parts: dict[str, Any] = {'mlp_layer': LocalMlp} if locality else {}
  return VisionTransformer(
    img_size=32,
    patch_size=4,
    embed_dim=64,
    depth=4,
    num_heads=2,
    mlp_ratio=3,
    num_classes=10,
    class_token=False,
    global_pool='avg',
    **parts,
  )


def read(split: str) -> tuple[torch.Tensor, torch.Tensor]:
  """The images (N, 3, 32, 32), uint8, and the labels (N,) of a split of CIFAR-10, as TFDS prepared it."""
  import tensorflow_datasets as tfds

  examples = list(tfds.data_source('cifar10', split=split))
  images = np.stack([example['image'] for example in examples]).transpose(0, 3, 1, 2)
  labels = np.array([example['label'] for example in examples], np.int64)
  return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)


def augmented(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
  """Images (B, 3, 32, 32) as float32 in [-1, 1], each cropped by itself after padding, and half of them mirrored."""
  number, side = len(images), images.shape[-1]
  padded = nn.functional.pad((images.float() - MEAN) / STD, (PADDING,) * 4)
  corners = torch.randint(0, 2 * PADDING + 1, (2, number, 1), generator=random)
  rows = corners[0] + torch.arange(side)
  columns = corners[1] + torch.arange(side)
  mirrored = torch.rand(number, 1, generator=random) < 0.5
  columns = torch.where(mirrored, columns.flip(1), columns)
  examples = torch.arange(number)[:, None, None]
  return (
    padded.permute(0, 2, 3, 1)[examples, rows[:, :, None], columns[:, None, :]]
    .permute(0, 3, 1, 2)
    .contiguous()
  )


@torch.inference_mode()
def accuracy(model: Any, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> float:
  model.eval()
  parts = zip(images.split(batch_size), labels.split(batch_size), strict=True)
  right = sum(int((model((part.float() - MEAN) / STD).argmax(1) == wanted).sum()) for part, wanted in parts)
  model.train()
  return right / len(images)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--epochs', type=int, default=9)
  parser.add_argument(
    '--locality', action='store_true', help='a depthwise convolution in every MLP, as ours has'
  )
  parser.add_argument('--learning_rate', type=float, default=6e-3)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--batch_size', type=int, default=128)
  options = parser.parse_args()
  timm_vit.declare_torchvision_operators()
  from timm.optim._optim_factory import create_optimizer_v2

  torch.manual_seed(options.seed)
  random = torch.Generator().manual_seed(options.seed)
  images, labels = read('train')
  test_images, test_labels = read('test')
  plain = create(options.locality)
  model = torch.compile(plain)
  optimizer = create_optimizer_v2(plain, opt='nmuon', lr=options.learning_rate, weight_decay=0.1)
  steps = len(images) // options.batch_size
  total = options.epochs * steps
  warmup = total // 20
  schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda step: (
      step / warmup if step < warmup else 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (total - warmup))
    ),
  )
  for epoch in range(options.epochs):
    order = torch.randperm(len(images), generator=random)
    for chosen in order[: steps * options.batch_size].split(options.batch_size):
      logits = model(augmented(images[chosen], random))
      nn.functional.cross_entropy(logits, labels[chosen], label_smoothing=0.1).backward()
      nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
      optimizer.step()
      optimizer.zero_grad()
      schedule.step()
    found = accuracy(model, test_images, test_labels, options.batch_size)
    minutes = sum(os.times()[:4]) / 60  # the compiler's processes too
    print(
      f'epoch {epoch + 1}: {found:.2%} of {len(test_images)}, {minutes:.1f} processor minutes', flush=True
    )


if __name__ == '__main__':
  main()
