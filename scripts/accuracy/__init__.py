"""How well the simulator predicts the engine on this machine: calibrated on some runs, held against others.

::

    calibration runs ─► device ─► capacity ─► arrival rates ─┬─► engine ────► real      ─┬─► errors, docs/accuracy.md
                                                             └─► simulator ─► predicted ─┘

| file | idea |
| --- | --- |
| `runs.py` | which runs |
| `measurement.py` | one run of the engine, one of the simulator |
| `comparison.py` | errors, the spread of repeated runs, and what is allowed |
| `documents.py` | what is shown |

`python -m scripts.accuracy --docs docs` runs all of it; nothing in the engine or the simulator imports any of it.
"""
