"""CIFAR-10: GLISTER-DP as the paper describes it: exponential mechanism, basic composition.

The paper varies k with --set dss_args.fraction=0.1…0.9, the budget with --set privacy.epsilon=3|8 and the split r
with --set privacy.split=0.1…0.9. It prints no learning rates or batch sizes; these are ours.
"""

from cords_dp.presets import config_for

config = config_for(
    "cifar10",
    "GLISTERDP",
    model=dict(architecture="ResNet18", numclasses=10),
    dataloader=dict(batch_size=1024),
    optimizer=dict(lr=0.5, momentum=0.9),
    train_args=dict(num_epochs=40),
    dss_args=dict(fraction=0.1, select_every=20, mechanism="exponential", greedy="RGreedy", r=15, linear_layer=True),
    privacy=dict(epsilon=3.0, delta=1e-5, max_grad_norm=1.0, composition="basic", split=0.5, validation="public"),
)
