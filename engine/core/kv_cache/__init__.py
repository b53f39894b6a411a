"""Which blocks of paged memory hold whose KV.

`block.py` a block and the free queue of blocks · `block_hash.py` the hash chain that names a prefix, `extra_keys.py`
what enters it beside tokens · `block_pool.py` every block, who is free, who is cached · `group.py` the block tables of
layers that keep their KV by one rule, `full_attention.py` and `sliding_window.py` the rules · `coordinator.py` all
groups behind one interface · `stats.py` how much the prefix cache had of what was asked · `manager.py` the face the
scheduler talks to. May be imported by `engine.core`; imports nothing above it.
"""
