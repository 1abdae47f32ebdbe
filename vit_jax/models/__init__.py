"""Vision Transformers and hybrids, MLP-Mixers, ResNets and EfficientNets; base.py has their contract and registry."""
