"""Engines behind addresses, of policies and teachers: what is said to them, and how work is spread."""
