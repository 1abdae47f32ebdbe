"""The models: Vision Transformers and hybrids, MLP-Mixers, ResNets; base.py has their contract and registry."""
