"""How long a step takes, told from what is in it: the time of the simulator's engine.

| file | idea |
| --- | --- |
| `composition.py` | what of a step its time depends on |
| `cost_model.py` | what a cost model is |
| `devices.py` | devices by name, each figure with its source |
| `capacity.py` | the KV cache blocks that fit on a device beside the weights |
| `roofline.py` | time from bytes, arithmetic and ceilings |
| `calibrated.py`, `least_squares.py` | time from the steps of recorded runs |
"""
