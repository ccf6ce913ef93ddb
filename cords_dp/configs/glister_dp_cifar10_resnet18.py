"""CIFAR-10 on a GPU: CORDS' ResNet18 from scratch, DP-SGD on a subset chosen privately by GLISTER-DP."""

from cords_dp import config_for

config = config_for(
    "cifar10",
    "GLISTERDP",
    model=dict(architecture="ResNet18"),
    dataloader=dict(batch_size=1024),
    optimizer=dict(lr=0.5),
    train_args=dict(num_epochs=40),
    dss_args=dict(fraction=0.1),
    privacy=dict(epsilon=3.0, max_grad_norm=1.0, ema_decay=0.99),
)
