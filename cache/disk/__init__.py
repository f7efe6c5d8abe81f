"""The disk tier: heads of prompts, as a cold prefill wrote them, on a drive."""
