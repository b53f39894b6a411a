"""The fuzzer: the real engine core among clients and collaborators that do everything they may, checked at every step.

`python -m sim.fuzz --steps 1000000 --seed 0` plays *episodes*. An episode is plain data, drawn from its seed before
anything runs: a small configuration, and what befalls the core at which tick (`episode.py`, `draw.py`).

::

    Episode ──► Stage ──► EngineCore ──► events ──► Watcher: every invariant at every event, situations counted
                  │           ▲
                  ╰─► ToyWorker: its tokens depend on all the KV it reads, so a wrong block is a wrong token

`stage.py` plays an episode and judges its end · `toy_model.py` the worker · `collaborators.py` its grammar backend
and KV connector · `client.py` what a client may believe · `watcher.py` where events go · `situations.py` what must
have been seen · `bound.py` when everything must be over · `campaign.py` many episodes · `shrink.py` the smallest one
that still fails · `report.py` what is printed. Randomness only from the generator of a seed; no clock decides anything.
"""
