"""Records: published sets, sources of your own, how they are split, guarded and stored."""
