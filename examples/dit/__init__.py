"""A small diffusion transformer on 8x8 digits: the model, data, metrics and report behind `train_dit.py`."""
