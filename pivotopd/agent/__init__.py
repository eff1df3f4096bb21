"""The agent loop that all environments share: history window, token ids, hint placement."""
