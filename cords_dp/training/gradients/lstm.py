"""The steps of an LSTM layer as one operation, in torch's own arithmetic, that hands over what its weights were given.

Opacus' LSTM calls its cell for each step, some thirty operations that autograd records and undoes one by one. Here the
input's part of all steps is one matrix product, and the rest is a loop of a few operations on memory laid out before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.layers.dp_rnn import DPLSTMCell
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Written = Callable[[Tensor, Tensor], None]  # (hidden states before each step, gradients of the gates), rows first


def lstm_layer(
    cell: DPLSTMCell, x: Tensor, h: Tensor, c: Tensor, *, reverse: bool, token: Tensor, written: Written
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one direction of one layer on ``x`` (steps, rows, numbers); return outputs, last hidden and cell state."""
    x = x.flip(0) if reverse else x
    gates = F.linear(x.transpose(0, 1), cell.ih.weight, cell.ih.bias)
    outputs, last = _Steps.apply(gates, h, c, token, cell, written)
    return outputs.flip(0) if reverse else outputs, outputs[-1], last


class _Steps(torch.autograd.Function):
    """Input gate, forget gate, new values and output gate, side by side in that order."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, h: Tensor, c: Tensor, token: Tensor, cell: DPLSTMCell, written: Written
    ) -> tuple[Tensor, Tensor]:
        rows, steps, width = gates.shape
        size = width // 4
        gates = gates.transpose(0, 1).clone(memory_format=torch.contiguous_format)  # written over below
        if cell.hh.bias is not None:
            gates += cell.hh.bias
        hidden, cells = (gates.new_empty(steps + 1, rows, size) for _ in range(2))
        squashed = gates.new_empty(steps, rows, size)
        hidden[0], cells[0] = h, c
        weight = cell.hh.weight.T
        for t in range(steps):
            now = gates[t].addmm_(hidden[t], weight)
            now[:, : 2 * size].sigmoid_()
            now[:, 2 * size : 3 * size].tanh_()
            now[:, 3 * size :].sigmoid_()
            enter, forget, new, leave = now.split(size, dim=1)
            torch.mul(forget, cells[t], out=cells[t + 1]).addcmul_(enter, new)
            torch.tanh(cells[t + 1], out=squashed[t])
            torch.mul(leave, squashed[t], out=hidden[t + 1])
        ctx.weight, ctx.written = cell.hh.weight, written
        ctx.save_for_backward(gates, hidden, cells, squashed)
        return hidden[1:].clone(), cells[-1].clone()  # copies: the model may write over what it gets

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Tensor, last: Tensor) -> tuple[Tensor | None, ...]:
        gates, hidden, cells, squashed = ctx.saved_tensors  # made here, so no part of a graph
        steps, rows, width = gates.shape
        enter, forget, new, leave = gates.split(width // 4, dim=2)
        slopes = torch.empty_like(gates)  # of the cell state by three gates, of the hidden state by the last
        into = slopes.split(width // 4, dim=2)
        torch.mul(new * enter, 1 - enter, out=into[0])
        torch.mul(cells[:-1] * forget, 1 - forget, out=into[1])
        torch.mul(enter, 1 - new.square(), out=into[2])
        torch.mul(squashed * leave, 1 - leave, out=into[3])
        through = leave * (1 - squashed.square())  # of the hidden state by the cell state
        slopes = slopes.view(steps, rows, 4, width // 4)
        of_cell, of_hidden = last.clone(), torch.zeros_like(last)
        for t in reversed(range(steps)):
            of_hidden = of_hidden.add_(outputs[t])
            of_cell.addcmul_(of_hidden, through[t])
            slopes[t, :, :3] *= of_cell[:, None]
            slopes[t, :, 3] *= of_hidden
            of_cell *= forget[t]
            of_hidden = slopes[t].view(rows, width) @ ctx.weight
        g = slopes.view(steps, rows, width).transpose(0, 1)
        ctx.written(hidden[:-1].transpose(0, 1), g)
        return g, of_hidden, of_cell, None, None, None
