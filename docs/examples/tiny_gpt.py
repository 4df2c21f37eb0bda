"""Train a tiny GPT on the demo's shards, on the CPU, in a few seconds. Run it after `make shards`:

    .venv/bin/python -m pip install torch        # not a dependency of fineweb_shards
    .venv/bin/python docs/examples/tiny_gpt.py

Output (the last digit may differ on other machines):

    step  20  loss 7.73
    step  40  loss 5.52
    step  60  loss 5.22
    step  80  loss 5.09
    step 100  loss 5.06
"""

import torch
from torch import nn

from fineweb_shards.loader import ShardLoader


class TinyGPT(nn.Module):
    def __init__(self, length=32, width=32, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(50304, width)
        self.positions = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, x, y):
        hidden = self.blocks(self.tokens(x) + self.positions.weight, mask=self.mask, is_causal=True)
        logits = hidden @ self.tokens.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


torch.manual_seed(0)
loader = ShardLoader("out/demo", "train", batch_size=4, seq_len=32, seed=0)
model = TinyGPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(1, 101):
    loss = model(*loader.next_batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 0:
        print(f"step {step:>3}  loss {sum(losses[-20:]) / 20:.2f}")
