"""CIFAR-10 on a GPU: WRN-16-4 from scratch with eight augmented views of each image (De et al. 2022)."""

from cords_dp import config_for

config = config_for(
    "cifar10",
    "FullDP",
    model=dict(architecture="WideResNet"),
    dataloader=dict(batch_size=4096),
    optimizer=dict(lr=4.0, momentum=0.0),
    train_args=dict(num_epochs=75),
    privacy=dict(epsilon=8.0, max_grad_norm=1.0, ema_decay=0.999, augmentations=8, max_physical_batch_size=1024),
)
