"""The tiers and what they speak; knows no model, no clock and no disk but through its ports."""
