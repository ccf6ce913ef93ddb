"""The synthetic shift set: RANDOM-DP, the paper's baseline on a uniform subset.

The paper varies k with --set dss_args.fraction=0.1…0.9, the budget with --set privacy.epsilon=3|8.
It prints no learning rates or batch sizes; these are ours.
"""

from cords_dp.presets import config_for

config = config_for(
    "synthetic",
    "RandomDP",
    model=dict(architecture="LogisticRegNet", numclasses=2),
    dataloader=dict(batch_size=128),
    optimizer=dict(lr=0.5, momentum=0.9),
    train_args=dict(num_epochs=40),
    dss_args=dict(fraction=0.1, select_every=20),
    privacy=dict(epsilon=3.0, delta=1e-5, max_grad_norm=1.0),
)
