"""sppo: Stable-Baselines3's PPO with the softmax surrogate of functional mirror ascent."""

__version__ = "0.1.0"
