"""Vision Transformers and hybrids, MLP-Mixers and ResNets; base.py has their contract and registry."""
