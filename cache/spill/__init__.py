"""The session spill: whole conversations on a drive, in blocks, written only where they changed."""
