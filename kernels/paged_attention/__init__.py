"""Paged attention: softmax(scale · Q Kᵀ) V, where K and V lie scattered over the blocks of a paged cache.

A step's queries are one *super-sequence*: the scheduled tokens of all requests, one request after another, a prompt
chunk and a single decode token being the same thing at different lengths. Request r owns queries
`query_start_loc[r] : query_start_loc[r + 1]`, which are its last tokens; it attends to `seq_lens[r]` tokens, itself
included, whose keys are found through its block table::

    request        0               1   2
    queries        q5 q6 q7        q9  q3            query_start_loc = 0 3 4 5
    keys           0 1 2 … 7       0…9 0…3           seq_lens = 8 10 4
    block tables   [4, 7]          [2, 1, 5]  [6]    position p lies in block table[p // block_size],
                                                     at offset p % block_size

    q6 sees keys 0…6 of its own request: the mask is causal and aligned to the last key. With a sliding window of w
    it sees only the last w of these. Query head h reads KV head h // (num_heads / num_kv_heads).

The cache keeps the tokens of one block and one head together, `[num_blocks, num_kv_heads, block_size, head_size]`, so
that reading a block is one copy of `block_size × head_size` contiguous elements per head.

Two things may be done to a score s = scale · q·k before the softmax, in this order: a *soft cap* c turns it into
c · tanh(s / c), which never leaves ±c (Gemma 2); *ALiBi* adds slope_h · (position of the key − position of the query),
which is never positive (Press et al., 2022).

- `reference`: the definition, in float64, one query at a time.
- `eager`: plain torch operations, batched; what this package exports. Runs everywhere.
- `triton_kernels`, `tiling`, `launch`: for a GPU; `launch.paged_attention_triton` is the entry.
- `specimens`: typical launches, to be compiled ahead of time and looked at.
"""

from kernels.paged_attention.eager import AttentionPlan, paged_attention, plan_attention

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]
