"""One writer a public format: what a trace is at block resolution"""
