"""Flows: Prefect chains of stages, and the command line. No logic lives here."""
