"""Which blocks of paged memory hold whose KV.

`block.py` a block and the free queue of blocks · `block_hash.py` the hash chain that names a prefix ·
`block_pool.py` every block, who is free, who is cached · `coordinator.py` block tables, one set per KV cache group ·
`manager.py` the face the scheduler talks to. May be imported by `engine.core`; imports nothing above it.
"""
