"""MNIST: RANDOM-DP, the paper's baseline on a uniform subset.

The paper varies k with --set dss_args.fraction=0.1…0.9, the budget with --set privacy.epsilon=3|8.
It prints no learning rates or batch sizes; these are ours.
"""

from cords_dp.config.presets import paper_config

config = paper_config("mnist", "RandomDP")
