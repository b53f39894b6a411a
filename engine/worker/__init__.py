"""The worker: everything that touches the device.

`Worker` readies the device, loads the model and sizes the KV cache; `ModelRunner` runs a step, from a
`SchedulerOutput` to a `ModelRunnerOutput`; `InputBatch` and `BlockTable` remember the running requests between steps.
On a CPU, `cpu_threads` decides how many threads the kernels use.
On a GPU, `dispatch` decides which steps replay one of `cuda_graphs`, `input_buffers` and `copies` carry a step to the
device and its tokens back, and `step_clock` times it.

May import `engine.attention`, `engine.models`, `engine.layers`, `engine.sample`, `kernels`, and the messages of
`engine.core`; is imported by `engine.executor` only.
"""
