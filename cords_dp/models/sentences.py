"""Frozen sentence embeddings: a BERT model in a local folder, as sentence-transformers saves one.

Each text goes through the network alone, at its own length: no padding, no other text in the batch, so its features
are the same to the last digit whatever else is embedded. Two small packages read the files (the extra ``text``); the
network is torch's own encoder. Pickled weights are not read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cords_dp.data.sources.texts import decode_text
from cords_dp.errors import ConfigError, UnsupportedModelError, how_to_install
from cords_dp.models.features import FrozenFeatures, freeze

_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_KEY = "model.features"


def check_sentence_model(folder: Path) -> None:
    """Refuse a folder that cannot hold such a model, or an installation that cannot read one."""
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        fix = f"the folder has no {missing[0]}; name a folder that sentence-transformers has saved, with {_FILES}"
        raise ConfigError(_KEY, f"sentence:{folder}", fix)
    if any(importlib.util.find_spec(package) is None for package in ("safetensors", "tokenizers")):
        raise ConfigError(_KEY, f"sentence:{folder}", f"needs {how_to_install('text')}")


def sentence_features(folder: Path, input_shape: Sequence[int]) -> FrozenFeatures:
    """Build features that turn rows of bytes (`sources.texts`) into embeddings of their texts."""
    check_sentence_model(folder)
    try:
        encoder = _Encoder(folder)
    except UnsupportedModelError:
        raise
    except Exception as error:  # three readers, many kinds
        why = f"the model cannot be read ({type(error).__name__}); only BERT models with mean or CLS pooling can be"
        raise ConfigError(_KEY, f"sentence:{folder}", why) from error
    if len(input_shape) != 1:
        raise ConfigError(_KEY, f"sentence:{folder}", f"is for texts, not for records of shape {tuple(input_shape)}")

    def function(records: Tensor) -> Tensor:
        if records.dtype != torch.uint8:
            raise UnsupportedModelError("sentence features are for texts (rows of bytes), not for numbers")
        encoder.to(records.device)
        return torch.cat([encoder(decode_text(row)) for row in records] or [torch.zeros(0, encoder.size)])

    shape = tuple(input_shape)
    feature_shape = (encoder.size,) if shape != (encoder.size,) else (1, encoder.size)
    return FrozenFeatures("sentence", (_digest(folder), encoder.longest, shape), shape, feature_shape, function, 16)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in _FILES:
        with open(folder / name, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:24]


def _settings(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


class _Encoder(nn.Module):
    """BERT and its pooling, for one text at a time."""

    def __init__(self, folder: Path):
        super().__init__()
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        config, pooling = _settings(folder / "config.json"), _settings(folder / "1_Pooling" / "config.json")
        if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
            raise UnsupportedModelError(f"sentence models must be BERT's, not {config.get('model_type')!r}")
        self.first_token = bool(pooling.get("pooling_mode_cls_token"))
        if not self.first_token and not pooling.get("pooling_mode_mean_tokens", True):
            raise UnsupportedModelError("sentence models must pool by the mean or by the first token")
        self.size = int(config["hidden_size"])
        longest = _settings(folder / "sentence_bert_config.json").get("max_seq_length")
        self.longest = min(int(longest or 512), int(config["max_position_embeddings"]))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.longest)
        state = {key.removeprefix("bert."): value.float() for key, value in load_file(folder / _FILES[2]).items()}
        words, places, kinds = (
            state[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        self.words, self.places = nn.Embedding.from_pretrained(words), nn.Embedding.from_pretrained(places + kinds[0])
        eps = float(config["layer_norm_eps"])
        self.norm = nn.LayerNorm(self.size, eps=eps)
        self.norm.load_state_dict(_pair(state, "embeddings.LayerNorm"))
        self.layers = nn.ModuleList(_layer(config, eps, state, i) for i in range(int(config["num_hidden_layers"])))
        freeze(self)

    def forward(self, text: str) -> Tensor:
        tokens = torch.tensor([self.tokenizer.encode(text).ids], device=self.words.weight.device)
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x[:, 0] if self.first_token else x.mean(dim=1)


def _pair(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {part: state[f"{name}.{part}"] for part in ("weight", "bias")}


def _layer(config: Mapping[str, Any], eps: float, state: Mapping[str, Tensor], number: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        int(config["hidden_size"]),
        int(config["num_attention_heads"]),
        int(config["intermediate_size"]),
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=eps,
        batch_first=True,
    )
    start = f"encoder.layer.{number}."
    parts = [_pair(state, f"{start}attention.self.{name}") for name in ("query", "key", "value")]
    layer.self_attn.in_proj_weight.data = torch.cat([part["weight"] for part in parts])
    layer.self_attn.in_proj_bias.data = torch.cat([part["bias"] for part in parts])
    places = {
        "attention.output.dense": layer.self_attn.out_proj,
        "attention.output.LayerNorm": layer.norm1,
        "intermediate.dense": layer.linear1,
        "output.dense": layer.linear2,
        "output.LayerNorm": layer.norm2,
    }
    for name, module in places.items():
        module.load_state_dict(_pair(state, start + name))
    return layer
