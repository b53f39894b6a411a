"""The frontend: text on the user's side, token ids on the core's.

A prompt enters through the `Processor` (text → `EngineCoreRequest`) and what the core sends back leaves through the
`OutputProcessor` (`EngineCoreOutputs` → `RequestOutput`), which turns tokens into text with a `Detokenizer` and looks
for stop strings in it. The `Tokenizer` serves both. Nothing here imports torch; transformers is loaded only for a
model folder that has no `tokenizer.json`.
"""
