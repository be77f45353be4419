//! Models as data: spec, families, weights, tokenizer, chat template, lowering.
