"""Checkpoint directories: their shape, their shards, their names, packed weights, made and read"""
