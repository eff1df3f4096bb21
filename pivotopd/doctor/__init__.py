"""Is everything here that a run needs: small checks, each of one idea, each bounded in time."""
