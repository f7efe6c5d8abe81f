"""One reader a format; each turns a file into traces."""
