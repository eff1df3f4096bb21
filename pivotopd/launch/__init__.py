"""Launchers: where a stage or a whole training runs. ``base`` says what they share, one module each the rest."""
