"""CIFAR-10: GLISTER-DP as the paper describes it: exponential mechanism, basic composition.

The paper varies k with --set dss_args.fraction=0.1…0.9, the budget with --set privacy.epsilon=3|8 and the split r
with --set privacy.split=0.1…0.9. It prints no learning rates or batch sizes; these are ours.
"""

from cords_dp.config.presets import paper_config

config = paper_config("cifar10", "GLISTERDP")
