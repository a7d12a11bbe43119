"""A diffusion transformer (DiT, Peebles & Xie 2022) for small images, with flow matching instead of DDPM.

The network predicts the velocity `x1 - x0` of the straight path `x_t = (1 - t) * x0 + t * x1` from noise `x0` to an
image `x1`, given `t` and a class. Blocks are adaLN-zero: every block starts as the identity, because the layer which
makes its shifts, scales and gates from the conditioning starts at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class DiTConfig:
    """The sizes of a model. Images are `image_size` squared with one channel."""

    image_size: int = 8
    patch_size: int = 2
    hidden_size: int = 64
    depth: int = 3
    heads: int = 4
    mlp_ratio: int = 4
    classes: int = 10


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Shifts and scales tokens `[batch, tokens, hidden]` by one vector `[batch, hidden]` per image."""
    return torch.addcmul(shift.unsqueeze(1), x, 1 + scale.unsqueeze(1))


class TimestepEmbedder(nn.Module):
    """Sinusoidal features of `t` in [0, 1], then a two-layer MLP."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        half = hidden_size // 2
        self.register_buffer("frequencies", 1000.0 * torch.exp(-math.log(10000.0) * torch.arange(half) / half))
        self.hidden = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, t: Tensor) -> Tensor:
        angles = t[:, None] * self.get_buffer("frequencies")
        return self.out(functional.silu(self.hidden(torch.cat([angles.cos(), angles.sin()], dim=1))))


class Attention(nn.Module):
    """Multi-head self-attention over all tokens."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, hidden))


class DiTBlock(nn.Module):
    """Attention and an MLP, each modulated and gated by the conditioning (adaLN-zero)."""

    def __init__(self, hidden_size: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(hidden_size, heads)
        self.norm2 = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.mlp_in = nn.Linear(hidden_size, mlp_ratio * hidden_size)
        self.mlp_out = nn.Linear(mlp_ratio * hidden_size, hidden_size)
        self.modulation = nn.Linear(hidden_size, 6 * hidden_size)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=1)
        x = torch.addcmul(x, gate1.unsqueeze(1), self.attn(modulate(self.norm1(x), shift1, scale1)))
        hidden = functional.gelu(self.mlp_in(modulate(self.norm2(x), shift2, scale2)), approximate="tanh")
        return torch.addcmul(x, gate2.unsqueeze(1), self.mlp_out(hidden))


class FinalLayer(nn.Module):
    """The last modulated norm and the map from tokens back to patches."""

    def __init__(self, hidden_size: int, patch_values: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(hidden_size, 2 * hidden_size)
        self.linear = nn.Linear(hidden_size, patch_values)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.modulation(condition).chunk(2, dim=1)
        return self.linear(modulate(self.norm(x), shift, scale))


class DiT(nn.Module):
    """Predicts the flow's velocity for images `[batch, size, size]`, times `[batch]` and classes `[batch]`.

    Class index `config.classes` stands for "no class"; it is trained by dropping labels and used by guidance.
    """

    def __init__(self, config: DiTConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        grid = config.image_size // config.patch_size
        patch_values = config.patch_size**2
        self.patch_embedding = nn.Linear(patch_values, config.hidden_size)
        self.position_embedding = nn.Parameter(torch.empty(grid * grid, config.hidden_size))
        self.time_embedding = TimestepEmbedder(config.hidden_size)
        self.class_embedding = nn.Embedding(config.classes + 1, config.hidden_size)
        self.blocks = nn.ModuleList(
            DiTBlock(config.hidden_size, config.heads, config.mlp_ratio) for _ in range(config.depth)
        )
        self.final_layer = FinalLayer(config.hidden_size, patch_values)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """The DiT paper's initialisation: Xavier for linear layers, zero for every modulation and the output."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                nn.init.zeros_(module.bias)
        for weight in (
            self.position_embedding,
            self.class_embedding.weight,
            self.time_embedding.hidden.weight,
            self.time_embedding.out.weight,
        ):
            nn.init.normal_(weight, std=0.02, generator=generator)
        zeroed = [self.final_layer.linear, self.final_layer.modulation]
        zeroed += [block.modulation for block in self.blocks if isinstance(block, DiTBlock)]
        for layer in zeroed:
            nn.init.zeros_(layer.weight)

    def patchify(self, images: Tensor) -> Tensor:
        """`[batch, size, size]` -> `[batch, patches, patch_size**2]`."""
        p = self.config.patch_size
        return images.unfold(1, p, p).unfold(2, p, p).flatten(3).flatten(1, 2)

    def unpatchify(self, patches: Tensor) -> Tensor:
        """The inverse of `patchify`."""
        p, size = self.config.patch_size, self.config.image_size
        grid = size // p
        return patches.view(-1, grid, grid, p, p).transpose(2, 3).reshape(-1, size, size)

    def forward(self, images: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        x = self.patch_embedding(self.patchify(images)) + self.position_embedding
        condition = functional.silu(self.time_embedding(t) + self.class_embedding(labels))
        for block in self.blocks:
            x = block(x, condition)
        return self.unpatchify(self.final_layer(x, condition))


def velocity_loss(model: DiT, images: Tensor, labels: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """Mean squared error of the predicted velocity on the straight path from `noise` to `images`."""
    at = t[:, None, None]
    return functional.mse_loss(model(torch.lerp(noise, images, at), t, labels), images - noise)


@torch.inference_mode()
def sample(model: DiT, labels: Tensor, generator: torch.Generator, steps: int = 8, guidance: float = 1.5) -> Tensor:
    """Draws one image per label by Heun's method with classifier-free guidance.

    Args:
        labels: classes, `[batch]`.
        steps: time steps from noise to image; each costs two evaluations of the guided velocity.
        guidance: 1 follows the conditional velocity, more extrapolates away from the unconditional one.

    Returns:
        Images `[batch, size, size]` clamped to [-1, 1].
    """
    count, size = len(labels), model.config.image_size
    both = torch.cat([labels, torch.full_like(labels, model.config.classes)])

    def velocity(x: Tensor, t: float) -> Tensor:
        conditional, unconditional = model(torch.cat([x, x]), torch.full((2 * count,), t), both).chunk(2)
        return torch.lerp(unconditional, conditional, guidance)

    x = torch.randn(count, size, size, generator=generator)
    for step in range(steps):
        slope = velocity(x, step / steps)
        end_slope = velocity(x + slope / steps, (step + 1) / steps)
        x = x + (slope + end_slope) / (2 * steps)
    return x.clamp(-1, 1)
