"""Traces in the formats of other tools: `orrery export TRACE --to …`.

| file | idea |
| --- | --- |
| `walk.py` | one pass over a trace, which also yields every step and request as soon as it is over |
| `chrome_trace.py`, `perfetto.py` | Chrome's trace format, and what of a run is drawn in it |
| `tables.py` | events, steps and requests as rows: CSV, Parquet |
| `otlp.py` | a span per request, under OpenTelemetry's names for generative AI |
| `kv_events.py` | the KV cache events that vLLM publishes |
| `formats.py` | the exporters by name |

An exporter reads a trace once and keeps nothing of what is over, so a trace may be of any size. It takes a trace that
was cut short as it is, and counts what its format has no place for.
"""
