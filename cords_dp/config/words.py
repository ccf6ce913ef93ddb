"""What the keys of a config mean that have no settings class of their own, for the configuration reference.

Keys of ``privacy`` and the common ones of ``dss_args`` are explained in `config.settings`, those of a mechanism in its
docstring. `config.keys` says what values each may have.
"""

from __future__ import annotations

TOP_LEVEL_WORDS = {
    "setting": "supervised learning, which is all that is private here",
    "is_reg": "CORDS' flag for a regression; `loss.type` decides what is trained",
    "report_tune": "report the accuracy to Ray Tune after each evaluation, as CORDS' tuning does",
}

SECTION_WORDS = {
    "dataset": "Which records, and where they lie.",
    "dataloader": "Batches. Private strategies draw each batch anew, by independent coins (Poisson).",
    "model": "What is trained.",
    "ckpt": "CORDS' checkpoint; the ledger lies beside it.",
    "loss": "What is minimised.",
    "optimizer": "How steps are taken.",
    "scheduler": "How the learning rate changes.",
    "dss_args": "The strategy: which records to train on.",
    "train_args": "How long, where, and what is logged.",
    "privacy": "The budget and everything that concerns it. Without this section nothing is private.",
}

KEY_WORDS: dict[str, dict[str, str]] = {
    "dataset": {
        "name": "a published set, a source of your own records, or any name if you hand the records over",
        "datadir": "where data and cached features are kept",
        "feature": "`dss` as it is, `classimb` some classes cut, `mildimb` each a little, `shift` D changed as below",
        "type": "CORDS' kind of records: `image`, `tabular`, `text`",
        "classimb_ratio": "with `feature=\"classimb\"`: the share of the classes that is cut to a tenth",
        "balanced_validation": "keep the validation set balanced while classes are cut",
        "num_samples": "records of the synthetic set",
        "class_separation": "how far apart the two classes of the synthetic set lie",
        "keep_range": "with `feature=\"mildimb\"`: between which shares each class keeps its records",
        "ss_path": "CORDS' folder of self-supervised features; not used by private strategies",
        "use_ss_if_exists": "CORDS' switch for them; not used by private strategies",
        "max_length": "words, or for a text source bytes, to which every text is cut or filled up",
        "data_dir": "where a text set of CORDS lies",
        "wordvec_dim": "dimensions of the word vectors",
        "weight_path": "the folder of GloVe's word vectors",
        "validation_fraction": "the share of the records that becomes the validation set V",
        "test_from_train": "test on this share of the training records instead of the test set: for choosing settings",
        "cut_classes": "classes of which only a part is kept in D",
        "cut_share": "which part of them is kept",
        "inverted_share": "the share of D whose images are inverted",
        "rotated_share": "the share of D whose images are turned",
        "label_noise": "the share of D's labels that are made wrong",
        "label_noise_kind": "`pair` moves a label to the next class, `random` to any",
    },
    "dataloader": {
        "shuffle": "CORDS' switch; Poisson batches have no order",
        "batch_size": "the expected size of a batch; `\"auto\"` lets the plan choose",
        "pin_memory": "as in torch",
        "collate_fn": "how records become a batch; of a private strategy it is given one record at a time",
    },
    "model": {
        "architecture": "the network: CORDS', one of ours, or a registered one (models.md)",
        "type": "CORDS' kind, `pre-defined`",
        "numclasses": "how many classes there are",
        "num_classes": "CORDS' other spelling",
        "input_dim": "the length of a record",
        "h1": "width of the first hidden layer", "h2": "width of the second hidden layer",
        "l1": "width of the first linear layer of CORDS' HyperParamNet", "l2": "CORDS' second layer of a text network",
        "wordvec_dim": "dimensions of the word vectors",
        "weight_path": "the folder of GloVe's word vectors",
        "num_layers": "layers of the LSTM",
        "hidden_size": "width of the LSTM",
        "args": "further arguments of the architecture",
        "features": "frozen features below the head: `scattering`, `leaves` (`leaves:mirrored`: images that mean the "
        "same in a mirror), `torchvision:NAME`, `sentence:FOLDER`, your own",
        "weights": "a file with the backbone's weights",
        "feature_cache": "keep the records' features on disk, for their owner alone",
    },
    "ckpt": {
        "is_load": "go on from the last checkpoint (`--resume`)",
        "is_save": "write checkpoints",
        "dir": "where",
        "save_every": "every so many epochs",
    },
    "loss": {
        "type": "`CrossEntropyLoss`, or `MeanSquaredLoss` for a regression",
        "use_sigmoid": "CORDS' switch; means nothing to these losses",
    },
    "optimizer": {
        "type": "`sgd`, `adam`, `adamw` or `rmsprop`",
        "momentum": "of SGD",
        "lr": "the learning rate; `\"auto\"` lets the plan choose (linear models on features of known length)",
        "lr1": "CORDS' rate of a network's first part", "lr2": "of the second part", "lr3": "of the third part",
        "weight_decay": "shrinks the weights in each step; costs no privacy",
        "nesterov": "of SGD",
        "lr_scale": "multiplies an automatic rate: what `reproduce rates` compares",
    },
    "scheduler": {
        "type": "`cosine_annealing` (also `_WS`, `_step`), `linear_decay`, `StepLR`, `multistep` or `None`",
        "T_max": "epochs of a half cosine",
        "T_0": "epochs before the first restart",
        "T_mult": "by which the time between restarts grows",
        "stepsize": "epochs between steps of the rate", "step_size": "the same, torch's spelling",
        "gamma": "by which a step multiplies the rate",
        "milestones": "epochs of the steps",
        "max_steps": "steps of the whole schedule",
    },
    "dss_args": {
        "type": "the strategy: `FullDP`, `RandomDP`, `GLISTERDP`, `ClassWeightsDP`, `GroupRatesDP`, or CORDS' own",
        "mechanism": "how `GLISTERDP` chooses; each has keys of its own, below",
        "score": "what a record is worth: `glister`, `el2n`, `grad_norm`, or a registered one",
        "collate_fn": "as in `dataloader`",
        "fraction": "the share of the records to train on in each epoch",
        "select_every": "select anew every so many epochs",
        "kappa": "the share of the epochs before the first selection",
        "linear_layer": "score by the last layer's weights too, not its bias alone",
        "selection_type": "`Supervised`, `PerClass`, or another of CORDS' groupings",
        "greedy": "how picks follow each other",
        "r": "rounds of RGreedy",
    },
    "train_args": {
        "num_epochs": "how many epochs",
        "device": "`cpu`, `cuda` or `cuda:N`; `cuda` falls back to the CPU",
        "print_every": "evaluate every so many epochs",
        "run": "a number of the run, part of CORDS' log path",
        "results_dir": "where logs and checkpoints go",
        "wandb": "send the rows of metrics.csv to Weights & Biases; call `wandb.init` before",
        "tensorboard": "write the rows of metrics.csv for TensorBoard",
        "print_args": "what CORDS' log lines show; exact metrics of private records are left out",
        "return_args": "changes nothing, as in CORDS",
        "seed": "fixes the data split and the initial weights, never noise",
        "shares": "with torchrun: which part of the records each process keeps",
    },
}  # fmt: skip
OF_CORDS = "an argument of CORDS' own strategies; named in the log and not used by private ones"

# Keys of sources of one's own records, where the source's docstring does not explain them.
SOURCE_WORDS = {
    "path": "the file or folder",
    "labels": "the file of y, where `path` holds x alone",
    "classes": "names of the classes, in the order of the labels, or how many there are",
    "target": "the column to predict",
    "text": "the column of texts",
    "image": "the column of images",
    "columns": "columns of numbers",
    "size": "pixels a side that images are brought to",
    "channels": "1 for grey, 3 for colour",
    "mean": "constants by which pixels are normalised",
    "std": "constants by which pixels are normalised",
    "max_length": "bytes to which every text is cut",
    "validation_fraction": "the share that becomes the validation set V",
    "test_fraction": "the share that becomes the test set, which is public",
    "validation_path": "a file of its own for V",
    "test_path": "a file of its own for the test set",
    "cache": "keep a compact copy below `datadir`, for its owner alone",
    "binning": "bins of numeric columns for which the schema has none",
    "cut_values": "values of `cut_column` whose records are cut",
    "cut_column": "the column by which records of D are cut",
    "cut_share": "which part of them is kept",
}  # fmt: skip
