"""Questions with figures: one file a question."""
