"""From tokens to what a chat client is sent."""
