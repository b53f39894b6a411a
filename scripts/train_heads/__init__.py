"""How draft heads are made: text that the target writes itself, its states, a training loop, acceptance figures.

::

    prompts ─► texts ─► states ─► train (eagle | medusa) ─► acceptance, curve

Each stage keeps what it made in the working folder and goes on from there when it is run again. Run
`python -m scripts.train_heads smollm2-135m --kind eagle`. Nothing in the engine imports any of it.
"""
