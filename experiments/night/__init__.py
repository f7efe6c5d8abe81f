"""The bundled night: a seeded plan, played to real clients against a scripted upstream"""
