"""Images in a prompt: bytes to patches, their digest, and what a tower made of them."""
