"""Text to tokens and back: the bundled tokenizer and chat template."""
