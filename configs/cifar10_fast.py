"""CIFAR-10 from scratch to 80 % (79.9 to 80.9) in the least processor time: 7 to 14 minutes of a core.

python -m vit_jax.main --config=configs/cifar10_fast.py --workdir=runs/cifar10_fast
python -m vit_jax.main --config=configs/cifar10_fast.py:long --workdir=runs/cifar10_long

The small model of cifar10_scratch.py, a sixth of its FLOPs an image, with a depthwise convolution in every MLP
(LocalViT), which knows neighbours from the first step, fixed positions, and Muon at a high rate (arXiv 2502.16982)
from small initial kernels, which its steps change sooner. 'long' has three convolutions in front, random erasing and
36 epochs: 90.6 to 91.0 % by three seeds, 51 to 54 minutes of processor time, 41 by the clock on two cores. Two cores
take 0.75 to 0.83 of the time with a device on each, by what stands here in front of the command:
NPROC=2 XLA_FLAGS='--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false'
What was measured, on which processor, and beside what: benchmarks/RESULTS.md.

Target: cpu:1
"""

from vit_jax import recipes

_FAST = {
  'total': '7 epochs',
  'batch_size': 64,
  'data.padding': 2,
  'model.heads': 2,
  'model.position': 'sincos2d',
  'model.mlp': 'local',
  'model.kernel_deviation': 0.02,
  'optimizer.name': 'muon',
  'optimizer.weight_decay': 0.1,
  'schedule.learning_rate': 4.5e-3,
  'schedule.warmup': '5%',
}
_LONG = {
  'total': '36 epochs',
  'data.augment': 'erase(0.25)',
  'evaluators.test.every': '4 epochs',
  'model.stem_convolutions': ((32, 2), (64, 1), (64, 2)),
  'model.patch': 1,
}


def get_config(arguments: str = ''):
  changes = {'fast': _FAST, 'long': _LONG}
  return recipes.changed_cifar10('cifar10_fast.py', ','.join(['small', 'fast', arguments]), changes)
