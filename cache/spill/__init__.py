"""The session spill: whole conversations on a drive, written only where they changed."""
