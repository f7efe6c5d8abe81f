"""The simulated ports and the board they pretend to be; holds no policy."""
